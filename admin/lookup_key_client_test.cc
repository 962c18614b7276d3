#include "admin/lookup_key_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "admin/testing/fake_transport.h"

namespace newmoon {
namespace {

using namespace std::chrono_literals;
using newmoon::testing::FakeClock;
using newmoon::testing::FakeTransport;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kRanks = 3;

LookupRequest lookup_of(Epoch epoch) {
  LookupRequest request;
  request.scope = ScopeId{{9}};
  request.epoch = epoch;
  request.num_tokens = 33;
  request.block_hashes = {BlockHash(Bytes(32, 1)), BlockHash(Bytes(32, 2))};
  return request;
}

// What a rank would answer to `frames`.
Frames answer_to(const Frames& frames, std::uint32_t hit_tokens = 32) {
  const Result<Request> request = decode_request(frames, ProtocolLimits());
  EXPECT_TRUE(request.has_value());
  if (std::holds_alternative<LookupRequest>(request->body)) {
    return encode_reply(*request, hit_tokens);
  }
  if (const auto* reset = std::get_if<ResetRequest>(&request->body)) {
    return encode_reply(
        *request, ResetAck{.fence = {.floor = reset->epoch}, .removed = reset->remove ? 7U : 0U});
  }
  return encode_reply(*request, FenceAck{.floor = 1});
}

// -1: no answer yet; -2: an error.
std::int64_t hit_tokens(const std::optional<Result<std::uint32_t>>& answer) {
  if (!answer) return -1;
  return *answer ? std::int64_t{**answer} : -2;
}

class LookupKeyClientTest : public ::testing::Test {
 protected:
  // The rank answers what it is sent, after `delay`.
  void answer(std::size_t rank, Duration delay = 0ms) {
    delays_[rank] = delay;
    transport_.on_send = [this](std::size_t peer, const Frames& frames) {
      if (!delays_.contains(peer)) return;
      transport_.deliver_after(delays_[peer], peer, answer_to(frames));
    };
  }
  void answer_all(Duration delay = 0ms) {
    for (std::size_t rank = 0; rank < kRanks; ++rank) answer(rank, delay);
  }
  Time in(Duration delay) const { return clock_.now() + delay; }
  std::vector<std::size_t> peers_sent_to() const {
    std::vector<std::size_t> peers;
    for (const auto& [peer, frames] : transport_.sent) peers.push_back(peer);
    return peers;
  }
  Request sent(std::size_t index) const {
    return *decode_request(transport_.sent.at(index).second, ProtocolLimits());
  }

  FakeClock clock_;
  FakeTransport transport_{clock_, kRanks};
  LookupKeyClient client_{transport_, clock_, {}};
  std::map<std::size_t, Duration> delays_;
};

TEST_F(LookupKeyClientTest, LookupAsksRankZeroOnceAndThenPolls) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  EXPECT_THAT(peers_sent_to(), ElementsAre(0));
  EXPECT_EQ(client_.pending_lookups(), 1U);
  transport_.deliver(0, answer_to(transport_.sent[0].second));
  EXPECT_EQ(hit_tokens(client_.lookup("a", lookup_of(1))), 32);
  EXPECT_EQ(hit_tokens(client_.lookup("a", lookup_of(1))), 32);
  EXPECT_THAT(peers_sent_to(), ElementsAre(0));
  EXPECT_EQ(client_.pending_lookups(), 0U);
}

TEST_F(LookupKeyClientTest, AnotherEpochAsksAgainAndOldAnswersAreDropped) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  EXPECT_FALSE(client_.lookup("a", lookup_of(2)));
  ASSERT_EQ(transport_.sent.size(), 2U);
  transport_.deliver(0, answer_to(transport_.sent[0].second, 16));
  EXPECT_FALSE(client_.lookup("a", lookup_of(2)));
  transport_.deliver(0, answer_to(transport_.sent[1].second, 32));
  EXPECT_EQ(hit_tokens(client_.lookup("a", lookup_of(2))), 32);
}

TEST_F(LookupKeyClientTest, DiscardedLookupsStayForgotten) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  EXPECT_FALSE(client_.lookup("b", lookup_of(1)));
  client_.discard("a");
  client_.discard("never asked");
  EXPECT_EQ(client_.pending_lookups(), 1U);
  client_.discard_all();
  EXPECT_EQ(client_.pending_lookups(), 0U);
  transport_.deliver(0, answer_to(transport_.sent[0].second));
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  EXPECT_EQ(transport_.sent.size(), 3U);
}

TEST_F(LookupKeyClientTest, AnAnswerOfAnotherRankIsNotTheLookups) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  transport_.deliver(1, answer_to(transport_.sent[0].second));
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
}

TEST_F(LookupKeyClientTest, ALookupEndsAtItsTimeoutAndStaysAMiss) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  clock_.advance(999ms);
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  clock_.advance(1ms);
  auto answer = client_.lookup("a", lookup_of(1));
  ASSERT_TRUE(answer && !*answer);
  EXPECT_EQ(answer->error().code, Code::kDeadline);
  transport_.deliver(0, answer_to(transport_.sent[0].second));
  EXPECT_FALSE(client_.lookup("a", lookup_of(1))->has_value());
}

TEST_F(LookupKeyClientTest, ASilentRankZeroHoldsUpNobodyUntilItAnswersAgain) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  clock_.advance(1s);
  EXPECT_FALSE(client_.lookup("a", lookup_of(1))->has_value());
  auto answer = client_.lookup("b", lookup_of(1));
  ASSERT_TRUE(answer && !*answer);
  EXPECT_EQ(answer->error().code, Code::kUnavailable);
  transport_.deliver(0, answer_to(transport_.sent[0].second));  // late, but a sign of life
  EXPECT_FALSE(client_.lookup("c", lookup_of(1)));
  EXPECT_EQ(client_.pending_lookups(), 1U);
}

TEST_F(LookupKeyClientTest, ALookupThatCannotBeSentIsAnsweredAtOnce) {
  transport_.full.insert(0);
  const auto answer = client_.lookup("a", lookup_of(1));
  ASSERT_TRUE(answer && !*answer);
  EXPECT_EQ(answer->error().code, Code::kUnavailable);
  EXPECT_EQ(client_.pending_lookups(), 0U);
}

TEST_F(LookupKeyClientTest, AServersErrorIsTheLookupsAnswer) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  const auto id = peek_request_id(transport_.sent[0].second);
  transport_.deliver(0, {{0x01}});  // noise first
  transport_.deliver(0, {});
  transport_.deliver(0, encode_error(id, {Code::kBusy, "full"}));
  const auto answer = client_.lookup("a", lookup_of(1));
  ASSERT_TRUE(answer && !*answer);
  EXPECT_EQ(answer->error().code, Code::kBusy);
}

TEST_F(LookupKeyClientTest, AnAnswerThatIsNoneIsAnErrorNotAHit) {
  EXPECT_FALSE(client_.lookup("a", lookup_of(1)));
  Frames answer = answer_to(transport_.sent[0].second);
  answer[2] = to_bytes("junk");
  transport_.deliver(0, answer);
  const auto seen = client_.lookup("a", lookup_of(1));
  ASSERT_TRUE(seen && !*seen);
  EXPECT_EQ(seen->error().code, Code::kBadRequest);
}

TEST_F(LookupKeyClientTest, FenceTellsEveryRankAndWaitsForNone) {
  const Time before = clock_.now();
  transport_.full.insert(1);
  client_.fence(5);
  EXPECT_EQ(clock_.now(), before);
  EXPECT_THAT(peers_sent_to(), ElementsAre(0, 2));
  EXPECT_EQ(std::get<FenceRequest>(sent(1).body).epoch, 5U);
}

TEST_F(LookupKeyClientTest, ResetWaitsForTheSlowestRankOnly) {
  answer(0, 10ms);
  answer(1, 300ms);
  answer(2, 20ms);
  const Time before = clock_.now();
  const auto answer = client_.reset({.epoch = 4}, in(5s));
  EXPECT_EQ(clock_.now() - before, 300ms);
  EXPECT_TRUE(answer.all_ok());
  EXPECT_TRUE(answer.fenced);
  EXPECT_THAT(answer.silent_ranks(), IsEmpty());
  ASSERT_EQ(answer.ranks.size(), kRanks);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(answer.ranks[rank].rank, rank);
    EXPECT_EQ(answer.ranks[rank].ack->fence.floor, 4U);
  }
}

TEST_F(LookupKeyClientTest, ResetEndsAtItsDeadlineAndNamesWhoWasSilent) {
  answer(0);
  answer(2);
  const Time before = clock_.now();
  const auto answer = client_.reset({.epoch = 4}, in(5s));
  EXPECT_EQ(clock_.now() - before, 5s);
  EXPECT_FALSE(answer.all_ok());
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(1));
  EXPECT_EQ(answer.ranks[1].ack.error().code, Code::kDeadline);
  EXPECT_TRUE(answer.ranks[2].ack.has_value());
}

TEST_F(LookupKeyClientTest, ASilentRankIsToldButNotAwaitedAgain) {
  answer(0, 10ms);
  answer(2, 10ms);
  client_.reset({.epoch = 4}, in(5s));
  transport_.sent.clear();
  const Time before = clock_.now();
  const auto answer = client_.reset({.epoch = 5}, in(5s));
  EXPECT_EQ(clock_.now() - before, 10ms);
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(1));
  int told = 0;
  for (const auto& [peer, frames] : transport_.sent) {
    told += peer == 1 && as_text(frames[0]) == SCOPED_RESET_MSG;
  }
  EXPECT_EQ(told, 1);
}

TEST_F(LookupKeyClientTest, ALateAnswerMakesARankAwaitedAgainButAnswersNothing) {
  answer(0);
  answer(2);
  client_.reset({.epoch = 4}, in(5s));
  const Frames late = answer_to(transport_.sent[1].second);
  transport_.deliver(1, late);
  answer(1, 200ms);
  const Time before = clock_.now();
  const auto answer = client_.reset({.epoch = 5}, in(5s));
  EXPECT_EQ(clock_.now() - before, 200ms);
  ASSERT_TRUE(answer.all_ok());
  EXPECT_EQ(answer.ranks[1].ack->fence.floor, 5U);  // not the late 4
}

TEST_F(LookupKeyClientTest, ALateAnswerWithinTheNextResetIsASignOfLifeToo) {
  answer(0, 100ms);
  answer(2, 100ms);
  client_.reset({.epoch = 4}, in(5s));
  transport_.deliver_after(50ms, 1, answer_to(transport_.sent[1].second));
  answer(1, 200ms);
  const auto answer = client_.reset({.epoch = 5}, in(5s));
  ASSERT_TRUE(answer.all_ok());
  EXPECT_EQ(answer.ranks[1].ack->fence.floor, 5U);
}

TEST_F(LookupKeyClientTest, ASilentRankIsProbedAndFoundAgain) {
  answer(0);
  answer(2);
  client_.reset({.epoch = 4}, in(5s));
  answer(1);
  transport_.sent.clear();
  client_.poll();
  EXPECT_THAT(peers_sent_to(), IsEmpty());  // not before its time
  clock_.advance(1s);
  client_.poll();
  EXPECT_THAT(peers_sent_to(), ElementsAre(1));
  EXPECT_TRUE(std::holds_alternative<PingRequest>(sent(0).body));
  client_.poll();
  answer(1, 200ms);
  EXPECT_TRUE(client_.reset({.epoch = 5}, in(5s)).all_ok());
}

TEST_F(LookupKeyClientTest, ARankWithAFullQueueIsUnavailableAtOnce) {
  answer_all();
  transport_.full.insert(2);
  const Time before = clock_.now();
  const auto answer = client_.reset({.epoch = 4}, in(5s));
  EXPECT_EQ(clock_.now(), before);
  EXPECT_EQ(answer.ranks[2].ack.error().code, Code::kUnavailable);
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(2));
}

TEST_F(LookupKeyClientTest, RemoveAllDrainsEveryRankThenRankZeroRemoves) {
  answer(0, 10ms);
  answer(1, 500ms);
  answer(2, 10ms);
  const auto answer = client_.reset({.epoch = 4, .mode = ResetMode::kRemoveAll}, in(5s));
  EXPECT_TRUE(answer.all_ok());
  ASSERT_THAT(peers_sent_to(), ElementsAre(0, 1, 2, 0));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::get<ResetRequest>(sent(i).body).remove);
  EXPECT_TRUE(std::get<ResetRequest>(sent(3).body).remove);
  EXPECT_EQ(answer.ranks[0].ack->removed, 7U);
  EXPECT_EQ(answer.ranks[1].ack->removed, 0U);
}

TEST_F(LookupKeyClientTest, RemoveAllRemovesNothingIfARankDidNotDrain) {
  answer(0);
  answer(1);
  const ResetRequest request{.epoch = 4, .mode = ResetMode::kRemoveAll, .remove = true};
  auto answer = client_.reset(request, in(5s));
  EXPECT_FALSE(answer.all_ok());
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(2));
  for (std::size_t i = 0; i < transport_.sent.size(); ++i) {
    const Request seen = sent(i);
    const auto* reset = std::get_if<ResetRequest>(&seen.body);
    EXPECT_FALSE(reset != nullptr && reset->remove);
  }
  // The same if a rank answered that it could not.
  transport_.on_send = [this](std::size_t peer, const Frames& frames) {
    const bool failed = peer == 2;
    transport_.deliver(peer, failed ? encode_error(peek_request_id(frames),
                                                   {Code::kDeadline, "jobs are still running"})
                                    : answer_to(frames));
  };
  clock_.advance(1s);
  client_.poll();
  client_.poll();
  transport_.sent.clear();
  answer = client_.reset(request, in(5s));
  EXPECT_FALSE(answer.all_ok());
  EXPECT_THAT(answer.silent_ranks(), IsEmpty());  // it did answer
  EXPECT_EQ(answer.ranks[2].ack.error().message, "jobs are still running");
  EXPECT_THAT(peers_sent_to(), ElementsAre(0, 1, 2));
}

TEST_F(LookupKeyClientTest, RemoveAllHasOneDeadlineForBothRounds) {
  answer_all(3s);
  const Time before = clock_.now();
  const auto answer = client_.reset({.epoch = 4, .mode = ResetMode::kRemoveAll}, in(5s));
  EXPECT_EQ(clock_.now() - before, 5s);
  EXPECT_FALSE(answer.all_ok());
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(0));
}

TEST_F(LookupKeyClientTest, DuplicatedAnswersCountOnce) {
  transport_.on_send = [this](std::size_t peer, const Frames& frames) {
    if (peer == 1) return;
    for (int i = 0; i < 3; ++i) transport_.deliver(peer, answer_to(frames));
  };
  const auto answer = client_.reset({.epoch = 4}, in(5s));
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(1));
}

TEST_F(LookupKeyClientTest, PingReachesEveryRank) {
  answer_all(5ms);
  const auto answer = client_.ping(in(1s));
  EXPECT_TRUE(answer.all_ok());
  EXPECT_EQ(answer.ranks[2].ack->fence.floor, 1U);
}

class ForeignClientTest : public ::testing::TestWithParam<ForeignDialect> {
 protected:
  LookupRequest request_ = lookup_of(1);
  FakeClock clock_;
  FakeTransport transport_{clock_, 1};
  LookupKeyClient client_{transport_, clock_, {.foreign = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Dialects, ForeignClientTest,
                         ::testing::Values(ForeignDialect::kVllm, ForeignDialect::kSeed),
                         [](const auto& info) {
                           return info.param == ForeignDialect::kVllm ? "Vllm" : "Seed";
                         });

TEST_P(ForeignClientTest, AsksOneLookupAtATime) {
  EXPECT_FALSE(client_.lookup("a", request_));
  EXPECT_FALSE(client_.lookup("b", request_));
  ASSERT_EQ(transport_.sent.size(), 1U);
  EXPECT_EQ(transport_.sent[0].second, encode_foreign_lookup(GetParam(), request_));
  transport_.deliver(0, {{0, 0, 0, 16}});
  EXPECT_FALSE(client_.lookup("b", request_));
  EXPECT_EQ(hit_tokens(client_.lookup("a", request_)), 16);
  ASSERT_EQ(transport_.sent.size(), 2U);
  transport_.deliver(0, {{0, 0, 0, 32}});
  EXPECT_EQ(hit_tokens(client_.lookup("b", request_)), 32);
}

TEST_P(ForeignClientTest, AnOldAnswerIsNeverTakenForANewOne) {
  EXPECT_FALSE(client_.lookup("a", request_));
  clock_.advance(1s);
  EXPECT_FALSE(client_.lookup("a", request_)->has_value());
  EXPECT_EQ(transport_.reopened[0], 1);  // the only way to be rid of the late answer
  EXPECT_FALSE(client_.lookup("b", request_));
  transport_.deliver(0, {{0, 0, 0, 32}});
  EXPECT_EQ(hit_tokens(client_.lookup("b", request_)), 32);
}

TEST_P(ForeignClientTest, ADiscardedLookupKeepsItsTurnOnTheWire) {
  EXPECT_FALSE(client_.lookup("a", request_));
  client_.discard("a");
  EXPECT_FALSE(client_.lookup("b", request_));
  EXPECT_EQ(transport_.sent.size(), 1U);
  transport_.deliver(0, {{0, 0, 0, 16}});  // a's
  EXPECT_FALSE(client_.lookup("b", request_));
  EXPECT_EQ(transport_.sent.size(), 2U);
}

TEST_P(ForeignClientTest, NobodyAskedForAnAnswer) {
  transport_.deliver(0, {{0, 0, 0, 16}});
  EXPECT_FALSE(client_.lookup("a", request_));
  EXPECT_FALSE(client_.lookup("a", request_));
}

TEST_P(ForeignClientTest, ResetOvertakesLookupsAndIsNotFenced) {
  EXPECT_FALSE(client_.lookup("a", request_));
  transport_.on_send = [this](std::size_t peer, const Frames& frames) {
    EXPECT_EQ(frames, encode_foreign_reset());
    transport_.deliver_after(30ms, peer, {{0x01}});
  };
  const auto answer = client_.reset({.epoch = 3, .mode = ResetMode::kRemoveAll}, clock_.now() + 5s);
  EXPECT_TRUE(answer.all_ok());
  EXPECT_FALSE(answer.fenced);
  EXPECT_EQ(transport_.reopened[0], 1);
  EXPECT_EQ(transport_.sent.size(), 2U);
}

TEST_P(ForeignClientTest, ResetSaysNoWhenTheServerSaysNoOrNothing) {
  transport_.on_send = [this](std::size_t peer, const Frames&) { transport_.deliver(peer, {{0}}); };
  auto answer = client_.reset({.epoch = 3}, clock_.now() + 5s);
  EXPECT_FALSE(answer.all_ok());
  EXPECT_THAT(answer.silent_ranks(), IsEmpty());
  transport_.on_send = nullptr;
  const Time before = clock_.now();
  answer = client_.reset({.epoch = 3}, clock_.now() + 5s);
  EXPECT_EQ(clock_.now() - before, 5s);
  EXPECT_THAT(answer.silent_ranks(), ElementsAre(0));
  EXPECT_EQ(transport_.reopened[0], 1);
}

TEST_P(ForeignClientTest, FenceSendsNothingAndPingTakesAnyAnswer) {
  client_.fence(4);
  EXPECT_TRUE(transport_.sent.empty());
  transport_.on_send = [this](std::size_t peer, const Frames&) { transport_.deliver(peer, {{0}}); };
  EXPECT_TRUE(client_.ping(clock_.now() + 1s).all_ok());
}

}  // namespace
}  // namespace newmoon
