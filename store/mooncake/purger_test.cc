#include "store/mooncake/purger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <thread>

#include "base/log.h"
#include "store/mooncake/testing/fake_client.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using std::chrono::milliseconds;
using ::testing::ElementsAre;

// A store of "many" keys.
class PurgerTest : public ::testing::Test {
 protected:
  PurgerTest() {
    purger_ = std::thread([this] { run_purges(client_, *gate_, list_many(), clock_); });
  }
  ~PurgerTest() override { stop(); }

  void stop() {
    gate_->stop();
    if (purger_.joinable()) purger_.join();
  }
  ListManyKeys list_many() {
    return [this](const WantedKey& wanted) -> std::optional<std::vector<std::string>> {
      if (throws_ > 0 && throws_-- > 0) throw std::bad_alloc();
      MutexLock lock(fake_.mutex);
      std::vector<std::string> keys;
      for (const auto& [key, value] : fake_.values) {
        if (wanted(key)) keys.push_back(key);
      }
      return keys;
    };
  }
  void fill(std::uint64_t scope, std::uint64_t count) {
    MutexLock lock(fake_.mutex);
    for (std::uint64_t i = 0; i < count; ++i) fake_.values[key_of(scope, i).to_string()] = "value";
  }
  void wait_until_purged() {
    while (gate_->counts().pending > 0) clock_.sleep_until(clock_.now() + milliseconds(1));
  }

  std::atomic<int> throws_ = 0;  // so many passes
  SystemClock clock_;
  const std::shared_ptr<FakeMooncake> shared_fake_ = std::make_shared<FakeMooncake>();
  FakeMooncake& fake_ = *shared_fake_;
  FakeMooncakeClient client_{shared_fake_};
  std::shared_ptr<ScopeGate> gate_ = std::make_shared<ScopeGate>(ScopeGate::Options{}, clock_);
  std::thread purger_;
};

TEST_F(PurgerTest, ManyKeysGoInBatchesAndNoPatternHoldsUpTheMaster) {
  fill(1, 3000);
  fill(2, 10);
  gate_->purge(scope_of(1), false);
  wait_until_purged();
  EXPECT_EQ(fake_.count(), 10u);
  EXPECT_EQ(gate_->counts().removed, 3000u);
  const MutexLock lock(fake_.mutex);
  EXPECT_EQ(fake_.passes, 0);
}

TEST_F(PurgerTest, OtherKeysStayWhateverTheyLookLike) {
  const std::string scope = scope_of(1).hex();
  const std::vector<std::string> others = {"nm1:" + scope, "nm1:" + scope + ":x", "nm1d:" + scope,
                                           "another-model@nm1:" + scope + ":"};
  {
    const MutexLock lock(fake_.mutex);
    for (const std::string& other : others) fake_.values[other] = "theirs";
  }
  fill(1, 1);
  gate_->purge(scope_of(1), false);
  wait_until_purged();
  EXPECT_EQ(fake_.count(), others.size());
}

TEST_F(PurgerTest, AKeyThatIsBeingWrittenHoldsUpNothing) {
  fill(1, 600);
  {
    const MutexLock lock(fake_.mutex);
    fake_.being_written.insert(key_of(1, 7).to_string());
  }
  gate_->purge(scope_of(1), false);
  wait_until_purged();
  EXPECT_EQ(fake_.count(), 1u);
}

TEST_F(PurgerTest, AMasterThatStaysAwayIsSaidOnce) {
  std::atomic<int> warnings = 0;
  set_log_threshold(LogLevel::kDebug);
  std::atomic<int> tries = 0;
  set_log_sink([&](LogLevel level, std::string_view, std::string_view) {
    ++tries;
    if (level == LogLevel::kWarning) ++warnings;
  });
  fake_.set_code("remove", -900);
  fill(1, 1);
  gate_->purge(scope_of(1), false);
  while (tries < 3) clock_.sleep_until(clock_.now() + milliseconds(1));
  fake_.set_code("remove", 0);
  wait_until_purged();
  stop();
  set_log_sink({});
  set_log_threshold(LogLevel::kWarning);
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(fake_.count(), 0u);
}

TEST_F(PurgerTest, StopsInTheMiddle) {
  fill(1, 10'000);
  fake_.hold();
  gate_->purge(scope_of(1), false);
  fake_.await_waiting(1);  // in its first batch
  gate_->stop();
  fake_.let_go();
  purger_.join();
  EXPECT_LT(fake_.count(), 10'000u);
  EXPECT_GT(fake_.count(), 9'000u);
}

TEST_F(PurgerTest, WithoutMemoryAPassIsTriedAgain) {
  set_log_sink([](auto...) {});
  fill(1, 10);
  throws_ = 1;
  gate_->purge(scope_of(1), false);
  wait_until_purged();
  EXPECT_EQ(throws_, 0);
  MutexLock lock(fake_.mutex);
  EXPECT_TRUE(fake_.values.empty());
  set_log_sink({});
}

}  // namespace
}  // namespace newmoon
