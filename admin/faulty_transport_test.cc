#include "admin/faulty_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "admin/protocol.h"

namespace newmoon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FakeClock final : public Clock {
 public:
  Time now() const override { return now_; }
  void sleep_until(Time deadline) override { now_ = std::max(now_, deadline); }

 private:
  Time now_{0};
};

// Records what is sent; waiting passes time.
class FakeTransport final : public ClientTransport {
 public:
  FakeTransport(FakeClock& clock, std::vector<std::size_t>& sent) : clock_(clock), sent_(sent) {}
  std::size_t peer_count() const override { return 2; }
  Status send(std::size_t peer, const Frames&) override {
    sent_.push_back(peer);
    return {};
  }
  std::optional<std::pair<std::size_t, Frames>> receive() override { return std::nullopt; }
  bool wait(Time deadline) override {
    clock_.sleep_until(deadline);
    return false;
  }
  void reopen(std::size_t) override {}

 private:
  FakeClock& clock_;
  std::vector<std::size_t>& sent_;
};

class FaultyTransportTest : public testing::Test {
 protected:
  void use(std::string_view rule) {
    const Result<TransportFaultRule> parsed = parse_transport_rule(rule);
    ASSERT_TRUE(parsed) << parsed.error().message;
    transport_ = std::make_unique<FaultyTransport>(std::make_unique<FakeTransport>(clock_, sent_),
                                                   std::vector{*parsed}, clock_);
  }
  void send(std::size_t peer, std::string_view tag) {
    ASSERT_TRUE(transport_->send(peer, {to_bytes(tag)}));
  }

  FakeClock clock_;
  std::vector<std::size_t> sent_;
  std::unique_ptr<FaultyTransport> transport_;
};

TEST_F(FaultyTransportTest, DropsOnlyTheMessagesOfTheRule) {
  use("send_fence:rank=1:drop");
  send(0, FENCE_MSG);
  send(1, FENCE_MSG);
  send(1, PING_MSG);
  EXPECT_THAT(sent_, ElementsAre(0, 1));
}

TEST_F(FaultyTransportTest, CountsMessages) {
  use("send_reset:nth=2:drop");
  for (int i = 0; i < 3; ++i) send(0, SCOPED_RESET_MSG);
  EXPECT_EQ(sent_.size(), 2u);
  sent_.clear();
  use("send_reset:every=2:drop");
  for (int i = 0; i < 4; ++i) send(0, SCOPED_RESET_MSG);
  EXPECT_EQ(sent_.size(), 2u);
}

TEST_F(FaultyTransportTest, SendsDelayedMessagesDuringAWaitThatReachesThem) {
  use("send_fence:delay_ms=50");
  send(1, FENCE_MSG);
  EXPECT_THAT(sent_, ElementsAre());
  EXPECT_FALSE(transport_->wait(std::chrono::milliseconds(49)));
  EXPECT_THAT(sent_, ElementsAre());
  EXPECT_FALSE(transport_->wait(std::chrono::milliseconds(60)));
  EXPECT_THAT(sent_, ElementsAre(1));
}

TEST_F(FaultyTransportTest, ReopenLosesWhatIsLate) {
  use("send_fence:delay_ms=50");
  send(1, FENCE_MSG);
  transport_->reopen(1);
  EXPECT_FALSE(transport_->wait(std::chrono::milliseconds(60)));
  EXPECT_THAT(sent_, ElementsAre());
}

TEST(TransportRule, RefusesWhatItDoesNotKnow) {
  EXPECT_TRUE(is_transport_rule("send_ping:drop"));
  EXPECT_FALSE(is_transport_rule("put:drop"));
  for (const auto& [rule, part] : {std::pair{"send_ping", "no effect"},
                                   {"send_ping:rank=x:drop", "rank=x"},
                                   {"send_ping:nth=0:drop", "nth=0"},
                                   {"receive_ping:drop", "receive_ping"}}) {
    const Result<TransportFaultRule> parsed = parse_transport_rule(rule);
    ASSERT_FALSE(parsed) << rule;
    EXPECT_EQ(parsed.error().code, Code::kBadRequest);
    EXPECT_THAT(parsed.error().message, HasSubstr(part));
  }
}

}  // namespace
}  // namespace newmoon
