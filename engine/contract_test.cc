// The contract W1-W8 (docs/architecture.md), a test each and more, with the
// interleavings that break upstream. Engines are whole: production scheduler,
// connector, admin channel and store, over the toy model; the oracle is a cold engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "connector/testing/fake_store.h"
#include "engine/testing/test_engine.h"

namespace newmoon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;
using testing::FakeStore;
using testing::test_prompt;
using testing::TestEngine;
using testing::TestStore;

constexpr std::uint64_t kA = 1;  // loaded at start
constexpr std::uint64_t kB = 2;

class ContractTest : public ::testing::Test {
 protected:
  // Another engine with weights A has put the prompt's blocks into the store.
  void fill_store(const std::vector<Token>& prompt) {
    TestEngine other({.incarnation = 99}, store_.store);
    other.generate("fill", prompt);
    other.settle_transfers();
    ASSERT_GT(store_.blocks(), 0u);
  }
  static std::uint64_t hits(const RequestOutput& output) {
    return output.counters.local_hit_tokens + output.counters.external_hit_tokens;
  }

  TestStore store_;
  const std::vector<Token> prompt_ = test_prompt(1, 30);
};

// --- W1: no request reads KV of other weights than it runs on ---

TEST_F(ContractTest, W1_CachedKvIsOutOfReachAfterAnUpdate) {
  TestEngine engine({}, store_.store);
  engine.generate("a", prompt_);
  engine.settle_transfers();
  ASSERT_TRUE(engine.update(kB, "b"));
  EXPECT_EQ(hits(engine.generate("b", prompt_)), 0u);
  EXPECT_EQ(engine.tokens["b"], engine.cold(kB, prompt_));
}

TEST_F(ContractTest, W1_LoadThatEndsAfterAnUpdateIsNotUsed) {
  fill_store(prompt_);
  TestEngine engine({}, store_.store);
  engine.hold_transfers = true;
  engine.add("r", prompt_);
  for (int i = 0; i < 3; ++i) engine.step();
  ASSERT_TRUE(engine.external().has_outstanding_load("r"));
  ASSERT_TRUE(engine.update(kB, "b"));
  for (int i = 0; i < 3; ++i) engine.step();
  engine.hold_transfers = false;
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kB, prompt_));
}

TEST_F(ContractTest, W1_LoadedAndWaitingIsDroppedByAnUpdate) {
  fill_store(prompt_);
  TestEngine engine({.model = {.sequences_max = 1}}, store_.store);
  engine.hold_transfers = true;
  engine.add("r", prompt_);
  for (int i = 0; i < 3; ++i) engine.step();
  ASSERT_TRUE(engine.external().has_outstanding_load("r"));
  engine.add("busy", test_prompt(2, 3), 20);
  engine.run_until("busy", 1);
  engine.hold_transfers = false;
  for (int i = 0; i < 3; ++i) engine.step();
  ASSERT_FALSE(engine.external().has_outstanding_load("r"));
  ASSERT_THAT(engine.tokens["r"], IsEmpty());  // it holds KV of A, and waits
  ASSERT_TRUE(engine.update(kB, "b"));
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kB, prompt_));
}

TEST_F(ContractTest, W1_StepScheduledBeforeAnUpdateAndRunAfterIsNotBelieved) {
  TestEngine engine({}, store_.store);
  engine.add("r", prompt_);
  engine.run_until("r", 1);
  engine.executor().held = true;
  engine.step();
  ASSERT_TRUE(engine.update(kB, "b"));
  engine.executor().release();
  engine.run();
  std::vector<Token> context = prompt_;
  context.push_back(engine.tokens["r"].front());
  std::vector<Token> expected = engine.cold(kA, prompt_, 1);
  std::ranges::copy(engine.cold(kB, context, 5), std::back_inserter(expected));
  EXPECT_EQ(engine.tokens["r"], expected);
}

TEST_F(ContractTest, W1_OnlyWhoAskedToContinueKeepsOldKv) {
  TestEngine engine({}, store_.store);
  RequestInput asks = engine.input("asks", prompt_, 8);
  asks.continue_across_update = true;
  engine.add(std::move(asks));
  engine.add("other", test_prompt(2, 30), 8);
  engine.run_until("asks", 2);
  engine.run_until("other", 2);
  const auto before = static_cast<std::uint32_t>(engine.tokens["asks"].size());
  ASSERT_TRUE(engine.update(kB, "b"));
  engine.run();
  EXPECT_EQ(engine.finished["asks"].counters.preemptions, 0u);
  EXPECT_EQ(engine.finished["other"].counters.preemptions, 1u);
  EXPECT_THAT(engine.finished["asks"].weight_versions,
              ElementsAre(WeightVersionSpan{.version = "default", .start = 0, .end = before},
                          WeightVersionSpan{.version = "b", .start = before, .end = 8}));
}

// --- W2: nothing becomes findable unless those weights computed it ---

TEST_F(ContractTest, W2_StepThatRunsAfterTheUpdateSavesNothingUnderTheOldScope) {
  TestEngine engine({}, store_.store);
  engine.add("r", prompt_);
  engine.step();  // the lookup
  engine.executor().held = true;
  engine.step();
  ASSERT_EQ(engine.executor().waiting_steps(), 1u);
  ASSERT_THAT(engine.executor().oldest().connector.saves, ::testing::SizeIs(1));
  // The write overtakes the step, which then computes with B and would store under A.
  ASSERT_TRUE(engine.update(kB, "b"));
  engine.executor().release();
  engine.core().abort_requests({});
  engine.settle_transfers();
  EXPECT_EQ(store_.blocks(), 0u);

  ASSERT_TRUE(engine.update(kA, "a"));
  engine.generate("again", prompt_);
  EXPECT_EQ(engine.tokens["again"], engine.cold(kA, prompt_));
}

TEST_F(ContractTest, W2_QueuedSaveIsDroppedByTheFence) {
  TestEngine engine({.identity = IdentityMode::kUnique}, store_.store);
  engine.hold_transfers = true;
  engine.add("r", prompt_);
  engine.run_until("r", 6);
  ASSERT_TRUE(engine.core().scheduler().has_pending_push_work());
  ASSERT_TRUE(engine.core().reset_caches(engine.in(5s)).success);
  engine.hold_transfers = false;
  engine.settle_transfers();
  EXPECT_EQ(store_.blocks(), 0u);
}

TEST_F(ContractTest, W2_ContinuingRequestPublishesNothing) {
  TestEngine engine({}, store_.store);
  RequestInput input = engine.input("r", prompt_, 30);
  input.continue_across_update = true;
  engine.add(std::move(input));
  engine.run_until("r", 2);
  engine.settle_transfers();
  ASSERT_TRUE(engine.update(kB, "b"));
  const std::uint64_t before = store_.blocks();
  engine.run();
  engine.settle_transfers();
  EXPECT_EQ(store_.blocks(), before);
  std::vector<Token> all = prompt_;
  std::ranges::copy(engine.tokens["r"], std::back_inserter(all));
  EXPECT_EQ(hits(engine.generate("s", all)), 0u);
  EXPECT_EQ(engine.tokens["s"], engine.cold(kB, all));
}

TEST_F(ContractTest, W2_PauseKeepWithoutClearContinuesOverAnUpdate) {
  TestEngine engine({}, store_.store);
  engine.add("r", prompt_, 12);
  engine.run_until("r", 2);
  ASSERT_TRUE(engine.pause(PauseMode::kKeep, false).complete);
  ASSERT_TRUE(engine.update(kB, "b"));
  ASSERT_TRUE(engine.core().resume_generation());
  engine.run();
  EXPECT_EQ(engine.finished["r"].counters.preemptions, 0u);
  EXPECT_EQ(engine.tokens["r"].size(), 12u);
  EXPECT_EQ(hits(engine.generate("s", prompt_)), 0u);
  EXPECT_EQ(engine.tokens["s"], engine.cold(kB, prompt_));
}

// Rule BIND: somebody writes weights and tells nobody but the rank.
TEST_F(ContractTest, W2_UnannouncedWriteIsNoticedAndSealed) {
  TestEngine engine({.identity = IdentityMode::kUnique}, store_.store);
  engine.add("r", prompt_, 12);
  engine.run_until("r", 2);
  const ScopeId before = *engine.core().fence().scope_id();
  ASSERT_TRUE(engine.runner().update_weights(TestModelRunner::set_weights(kB)));
  engine.local_executor().note_weight_write(0);
  engine.run();
  EXPECT_NE(*engine.core().fence().scope_id(), before);
  EXPECT_EQ(engine.generate("s", prompt_).status, RequestStatus::kFinishedLengthCapped);
  EXPECT_EQ(engine.tokens["s"], engine.cold(kB, prompt_));
}

// --- W3: a fence costs the same, however much is cached ---

class CountingStore final : public KvStore {
 public:
  explicit CountingStore(KvStore& inner) : inner_(inner) {}
  int calls = 0;

  std::vector<Status> put(std::span<const PutItem> items) override { return count().put(items); }
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override {
    return count().get(items);
  }
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override {
    return count().hit_prefix(scope, shards, blocks);
  }
  Status remove(const Key& key) override { return count().remove(key); }
  Status purge_scope(const ScopeId& scope, bool for_good) override {
    return count().purge_scope(scope, for_good);
  }
  void describe_scope(const ScopeId& scope, const std::string& description) override {
    count().describe_scope(scope, description);
  }
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override {
    return count().hold_scope(scope, holder, lease);
  }
  Result<std::uint64_t> remove_all() override { return count().remove_all(); }
  Status ping() override { return count().ping(); }
  Result<StoreStats> stats() override { return count().stats(); }
  Result<std::vector<ScopeUsage>> list_scopes() override { return count().list_scopes(); }
  bool reads_are_atomic() const override { return inner_.reads_are_atomic(); }

 private:
  KvStore& count() {
    ++calls;
    return inner_;
  }
  KvStore& inner_;
};

TEST_F(ContractTest, W3_FenceTouchesNeitherStoreNorCachedEntries) {
  CountingStore store(store_.store);
  TestEngine engine({.blocks = 512}, store);
  for (int i = 0; i < 20; ++i) engine.generate("r" + std::to_string(i), test_prompt(i, 60));
  engine.settle_transfers();
  const std::size_t cached = engine.pool().cached_count();
  ASSERT_GT(cached, 200u);
  store.calls = 0;
  ASSERT_TRUE(engine.core().reset_caches(engine.in(5s)).success);
  EXPECT_EQ(store.calls, 0);
  EXPECT_EQ(engine.pool().cached_count(), cached);  // nobody walked over them
  EXPECT_EQ(hits(engine.generate("s", test_prompt(3, 60))), 0u);
}

// --- W4: others' KV stays ---

TEST_F(ContractTest, W4_ResetLeavesOtherNamespacesAndEnginesAlone) {
  TestEngine mine({.incarnation = 1}, store_.store);
  TestEngine peer({.incarnation = 2}, store_.store);
  TestEngine stranger({.name_space = "run 8", .incarnation = 3}, store_.store);
  mine.generate("r", prompt_);
  stranger.generate("r", prompt_);
  mine.settle_transfers();
  stranger.settle_transfers();
  const CacheResetAnswer answer = mine.core().reset_caches(mine.in(5s));
  EXPECT_EQ(answer.scope, ScopeOutcome::kNew);
  EXPECT_EQ(hits(mine.generate("cold", prompt_)), 0u);
  EXPECT_EQ(peer.generate("warm", prompt_).counters.external_hit_tokens, 28u);

  TestEngine stranger2({.name_space = "run 8", .incarnation = 4}, store_.store);
  EXPECT_EQ(stranger2.generate("warm", prompt_).counters.external_hit_tokens, 28u);
}

TEST_F(ContractTest, W4_OnlyUniqueScopesArePurged) {
  TestEngine engine({}, store_.store);
  engine.generate("r", prompt_);
  engine.settle_transfers();
  const std::uint64_t named = store_.blocks();
  engine.core().reset_caches(engine.in(5s));  // leaves the named scope for a unique one
  EXPECT_THAT(engine.purged(), IsEmpty());
  engine.generate("s", prompt_);
  engine.settle_transfers();
  EXPECT_GT(store_.blocks(), named);
  engine.core().reset_caches(engine.in(5s));
  EXPECT_EQ(engine.purged().size(), 1u);
  EXPECT_EQ(store_.blocks(), named);
}

// --- W5: everything ends within one deadline, and tells the truth ---

TEST_F(ContractTest, W5_DeadRankHoldsUpNeitherPauseNorReset) {
  TestEngine engine({}, store_.store);
  engine.add("r", prompt_, 12);
  engine.run_until("r", 2);
  engine.executor().held = true;  // its step never ends
  engine.step();
  engine.silent_ranks = 1;  // and it answers nothing
  const Time before = engine.clock().now();
  const PauseAnswer answer = engine.pause(PauseMode::kKeep, true, 5s);
  EXPECT_LE(engine.clock().now() - before, 5s + 100ms);
  EXPECT_FALSE(answer.complete);
  EXPECT_EQ(answer.steps_in_flight, 1u);
  EXPECT_TRUE(answer.reset->success);  // fenced: nothing stale can be read
  EXPECT_TRUE(answer.reset->degraded);
  EXPECT_THAT(answer.reset->silent_ranks, ElementsAre(1u));
  EXPECT_TRUE(engine.core().is_paused());
  // A rank known dead is not awaited again.
  const Time again = engine.clock().now();
  engine.core().reset_caches(engine.in(5s));
  EXPECT_LT(engine.clock().now() - again, 1s);
}

TEST_F(ContractTest, W5_DeadRanksReportsAreNotAwaited) {
  fill_store(prompt_);
  TestEngine engine({}, store_.store);
  engine.hold_transfers = true;
  engine.add("r", prompt_);
  for (int i = 0; i < 3; ++i) engine.step();
  ASSERT_TRUE(engine.external().has_outstanding_load("r"));
  engine.core().rank_died(0);
  engine.core().rank_died(1);
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kA, prompt_));
  EXPECT_EQ(engine.finished["r"].counters.external_hit_tokens, 0u);
}

TEST_F(ContractTest, W5_LookupThatIsNeverAnsweredIsAMissAndHoldsUpNobody) {
  TestEngine engine({}, store_.store);
  engine.silent_ranks = 2;
  engine.add("r", prompt_);
  engine.add("short", {1, 2, 3});  // less than a block: nothing to look up
  engine.run_until("short", 6);
  EXPECT_THAT(engine.tokens["r"], IsEmpty());
  engine.clock().advance(2s);
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kA, prompt_));
}

// --- W6: no block is reused while anything may still read or write it ---

TEST_F(ContractTest, W6_SourceOfAQueuedSaveIsNotReused) {
  TestEngine engine({.blocks = 20}, store_.store);
  engine.hold_transfers = true;
  engine.add("r", prompt_, 2);
  engine.run_until("r", 2);
  const std::size_t pinned = engine.pool().pinned_count();
  EXPECT_EQ(pinned, 7u);
  engine.add("s", test_prompt(2, 40), 2);  // fits only beside the pinned blocks
  engine.run_until("s", 2);
  EXPECT_EQ(engine.tokens["s"], engine.cold(kA, test_prompt(2, 40), 2));
  engine.hold_transfers = false;
  engine.settle_transfers();
  EXPECT_EQ(engine.pool().pinned_count(), 0u);

  TestEngine reader({.incarnation = 2}, store_.store);
  EXPECT_EQ(reader.generate("r", prompt_).counters.external_hit_tokens, 28u);
  EXPECT_EQ(reader.tokens["r"], reader.cold(kA, prompt_));
}

TEST_F(ContractTest, W6_TargetOfACancelledLoadIsNotReused) {
  fill_store(prompt_);
  TestEngine engine({.blocks = 20}, store_.store);
  engine.hold_transfers = true;
  engine.add("r", prompt_);
  for (int i = 0; i < 3; ++i) engine.step();
  ASSERT_TRUE(engine.external().has_outstanding_load("r"));
  engine.core().abort_requests({});
  // Takes what is left; the load then writes into blocks nobody has.
  engine.add("s", test_prompt(2, 40), 6);
  engine.run_until("s", 3);
  engine.hold_transfers = false;
  engine.run();
  EXPECT_EQ(engine.tokens["s"], engine.cold(kA, test_prompt(2, 40)));
  engine.settle_transfers();
  EXPECT_EQ(engine.pool().used_count(), 0u);
}

TEST_F(ContractTest, W6_BlocksOfAHeldStepAreNotReused) {
  TestEngine engine({}, store_.store);
  engine.executor().in_flight_max = 2;
  engine.add("r", prompt_);
  engine.run_until("r", 1);
  engine.executor().held = true;
  engine.step();
  engine.core().abort_requests({});
  engine.add("s", test_prompt(2, 30));
  for (int i = 0; i < 3; ++i) engine.step();
  ASSERT_EQ(engine.executor().waiting_steps(), 2u);
  engine.executor().release();  // the old step writes, then the new one
  engine.run();
  EXPECT_EQ(engine.tokens["s"], engine.cold(kA, test_prompt(2, 30)));
}

// --- W7: bytes read back are checked before use ---

TEST_F(ContractTest, W7_SpoiltValueIsAMiss) {
  FakeStore store;
  TestEngine writer({}, store);
  writer.generate("w", prompt_);
  writer.settle_transfers();
  ASSERT_FALSE(store.values.empty());
  for (auto& [key, value] : store.values) value.payload[3] ^= 1;
  TestEngine reader({.incarnation = 2}, store);
  const RequestOutput output = reader.generate("r", prompt_);
  EXPECT_EQ(reader.tokens["r"], reader.cold(kA, prompt_));
  EXPECT_EQ(output.counters.external_hit_tokens, 0u);
  EXPECT_EQ(output.status, RequestStatus::kFinishedLengthCapped);
}

// --- W8: what is right is kept ---

TEST_F(ContractTest, W8_RepeatedResetKeepsAVerifiedScope) {
  TestEngine engine({}, store_.store);
  engine.generate("r", prompt_);
  engine.settle_transfers();
  ASSERT_TRUE(engine.update(kB, "b"));
  ASSERT_TRUE(engine.update(kA, "a"));
  // verl resets once more after loading.
  EXPECT_EQ(engine.core().reset_caches(engine.in(5s)).scope, ScopeOutcome::kKept);
  EXPECT_EQ(engine.generate("s", prompt_).counters.external_hit_tokens, 28u);
  EXPECT_EQ(engine.core().reset_caches(engine.in(5s)).scope, ScopeOutcome::kNew);
  EXPECT_EQ(hits(engine.generate("t", prompt_)), 0u);
}

TEST_F(ContractTest, W8_CallerMayKeepAVerifiedScope) {
  TestEngine engine({}, store_.store);
  engine.generate("r", prompt_);
  engine.settle_transfers();
  const CacheResetAnswer answer =
      engine.core().reset_prefix_cache(true, true, engine.in(5s), /*keep_verified=*/true);
  EXPECT_EQ(answer.scope, ScopeOutcome::kKept);
  const RequestOutput output = engine.generate("s", prompt_);
  EXPECT_EQ(output.counters.local_hit_tokens, 0u);
  EXPECT_EQ(output.counters.external_hit_tokens, 28u);
}

TEST_F(ContractTest, W8_ResetWithoutTheConnectorKeepsTheExternalTier) {
  TestEngine engine({}, store_.store);
  engine.generate("r", prompt_);
  engine.settle_transfers();
  EXPECT_EQ(engine.core().reset_prefix_cache(true, false, engine.in(5s)).scope,
            ScopeOutcome::kKept);
  EXPECT_EQ(engine.generate("s", prompt_).counters.external_hit_tokens, 28u);
}

TEST_F(ContractTest, W8_ResetsWhileSealedStaySealed) {
  TestEngine engine({}, store_.store);
  ASSERT_TRUE(engine.core().start_weight_update());
  EXPECT_EQ(engine.core().reset_caches(engine.in(5s)).scope, ScopeOutcome::kSealed);
  ASSERT_TRUE(engine.core().update_weights(TestModelRunner::set_weights(kB)));
  EXPECT_EQ(engine.core().reset_caches(engine.in(5s)).scope, ScopeOutcome::kSealed);
  ASSERT_TRUE(engine.core().finish_weight_update("b"));
  EXPECT_EQ(engine.core().reset_caches(engine.in(5s)).scope, ScopeOutcome::kKept);
  engine.generate("r", prompt_);
  EXPECT_EQ(engine.tokens["r"], engine.cold(kB, prompt_));
}

}  // namespace
}  // namespace newmoon
