// EngineCore with the production connector, admin channel and memory store, over the
// toy model, compared with a cold engine.
#include "engine/engine_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/testing/test_engine.h"

namespace newmoon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace std::chrono_literals;
using testing::test_prompt;
using testing::TestEngine;
using testing::TestStore;

constexpr std::uint64_t kA = 1;  // weights; the first are loaded at start
constexpr std::uint64_t kB = 2;

class EngineCoreTest : public ::testing::Test {
 protected:
  static bool is_unique(TestEngine& engine) {
    const std::optional<Scope>& scope = engine.core().fence().scope();
    return scope && scope->is_unique();
  }
  static std::uint64_t hits(const RequestOutput& output) {
    return output.counters.local_hit_tokens + output.counters.external_hit_tokens;
  }

  TestStore store_;
};

TEST_F(EngineCoreTest, SaysWhatAColdEngineSays) {
  TestEngine engine({}, store_.store);
  // More requests than slots, prompts longer than a step's budget, shared prefixes.
  const std::vector<Token> shared = test_prompt(1, 24);
  std::map<RequestId, std::vector<Token>> prompts;
  for (int i = 0; i < 9; ++i) {
    std::vector<Token> prompt = shared;
    const std::vector<Token> own = test_prompt(10 + i, static_cast<std::size_t>(7 * i + 1));
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts["r" + std::to_string(i)] = prompt;
  }
  for (const auto& [id, prompt] : prompts) engine.add(id, prompt, 11);
  engine.run();
  for (const auto& [id, prompt] : prompts) {
    EXPECT_EQ(engine.tokens[id], engine.cold(kA, prompt, 11)) << id;
    EXPECT_EQ(engine.finished[id].status, RequestStatus::kFinishedLengthCapped);
  }
  EXPECT_EQ(engine.pool().used_count(), 0u);
}

TEST_F(EngineCoreTest, LocalHitIsCountedAndLeavesTheLastTokenToCompute) {
  TestEngine engine({.connector = false}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 16);
  engine.generate("cold", prompt);
  const RequestOutput warm = engine.generate("warm", prompt);
  EXPECT_EQ(engine.tokens["warm"], engine.cold(kA, prompt));
  EXPECT_EQ(warm.counters.local_hit_tokens, 12u);  // of blocks of 4, one token must be left
  EXPECT_EQ(warm.counters.computed_tokens, 4u + 5u);
}

TEST_F(EngineCoreTest, ExternalHitFromAnotherEngine) {
  TestEngine first({.incarnation = 1}, store_.store);
  TestEngine second({.incarnation = 2}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 30);
  first.generate("a", prompt);
  first.settle_transfers();
  EXPECT_GT(store_.blocks(), 0u);

  const RequestOutput output = second.generate("b", prompt);
  EXPECT_EQ(second.tokens["b"], second.cold(kA, prompt));
  EXPECT_EQ(output.counters.external_hit_tokens, 28u);
  EXPECT_EQ(output.counters.local_hit_tokens, 0u);
}

TEST_F(EngineCoreTest, ReturnToEarlierWeightsFindsTheirBlocks) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 30);
  engine.generate("a1", prompt);
  engine.settle_transfers();

  ASSERT_TRUE(engine.update(kB, "b"));
  const RequestOutput b = engine.generate("b", prompt);
  EXPECT_EQ(engine.tokens["b"], engine.cold(kB, prompt));
  EXPECT_EQ(b.counters.local_hit_tokens + b.counters.external_hit_tokens, 0u);
  engine.settle_transfers();

  ASSERT_TRUE(engine.update(kA, "a again"));
  const RequestOutput a2 = engine.generate("a2", prompt);
  EXPECT_EQ(engine.tokens["a2"], engine.cold(kA, prompt));
  EXPECT_EQ(a2.counters.external_hit_tokens, 28u);
  EXPECT_THAT(a2.weight_versions,
              ElementsAre(WeightVersionSpan{.version = "a again", .start = 0, .end = 6}));
}

TEST_F(EngineCoreTest, RunningRequestIsRecomputedUnderNewWeightsAndSpansSayWho) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 10);
  engine.add("r", prompt, 8);
  engine.run_until("r", 3);
  ASSERT_TRUE(engine.update(kB, "b"));
  engine.run();

  const std::vector<Token> before = engine.cold(kA, prompt, 3);
  std::vector<Token> so_far = prompt;
  so_far.insert(so_far.end(), before.begin(), before.end());
  std::vector<Token> expected = before;
  const std::vector<Token> after = engine.cold(kB, so_far, 5);
  expected.insert(expected.end(), after.begin(), after.end());
  EXPECT_EQ(engine.tokens["r"], expected);
  EXPECT_THAT(engine.finished["r"].weight_versions,
              ElementsAre(WeightVersionSpan{.version = "default", .start = 0, .end = 3},
                          WeightVersionSpan{.version = "b", .start = 3, .end = 8}));
}

TEST_F(EngineCoreTest, BadRequestsAreRefused) {
  TestEngine engine({.blocks = 10}, store_.store);
  EngineCore& core = engine.core();
  EXPECT_EQ(core.add_request(engine.input("r", {}, 1)).error().code, Code::kBadRequest);
  EXPECT_EQ(core.add_request(engine.input("r", {97}, 1)).error().code, Code::kBadRequest);
  EXPECT_EQ(core.add_request(engine.input("r", {-1}, 1)).error().code, Code::kBadRequest);
  EXPECT_EQ(core.add_request(engine.input("r", {1}, 0)).error().code, Code::kBadRequest);
  const Status long_prompt = core.add_request(engine.input("r", test_prompt(1, 256), 1));
  EXPECT_THAT(long_prompt.error().message, ::testing::HasSubstr("256"));
  // Fits the context, but never the blocks.
  EXPECT_EQ(core.add_request(engine.input("r", test_prompt(1, 30), 9)).error().code,
            Code::kBadRequest);
  engine.add("r", test_prompt(1, 4));
  EXPECT_EQ(core.add_request(engine.input("r", {1}, 1)).error().code, Code::kBadRequest);
}

TEST_F(EngineCoreTest, StopsAtStopTokens) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 10);
  const std::vector<Token> expected = engine.cold(kA, prompt, 6);
  RequestInput input = engine.input("r", prompt, 6);
  input.stop_token_ids = {expected[2]};
  engine.add(std::move(input));
  engine.run();
  const auto first = std::ranges::find(expected, expected[2]) - expected.begin() + 1;
  EXPECT_EQ(engine.tokens["r"], std::vector<Token>(expected.begin(), expected.begin() + first));
  EXPECT_EQ(engine.finished["r"].status, RequestStatus::kFinishedStopped);
}

TEST_F(EngineCoreTest, FailedStepEndsItsRequestsAndSavesNothing) {
  TestEngine engine({}, store_.store);
  engine.runner().fail_next_execute({Code::kInternal, "out of luck"});
  const RequestOutput output = engine.generate("r", test_prompt(1, 20));
  engine.settle_transfers();
  EXPECT_EQ(output.status, RequestStatus::kFinishedError);
  EXPECT_THAT(output.error, ::testing::HasSubstr("out of luck"));
  EXPECT_EQ(store_.blocks(), 0u);
  EXPECT_EQ(engine.pool().used_count(), 0u);
  const std::vector<Token> prompt = test_prompt(1, 20);
  EXPECT_EQ(engine.generate("again", prompt).counters.local_hit_tokens, 0u);
  EXPECT_EQ(engine.tokens["again"], engine.cold(kA, prompt));
}

// --- pause ---

TEST_F(EngineCoreTest, PauseAbortEndsAllAndKeepsNewOnesWaiting) {
  TestEngine engine({}, store_.store);
  engine.add("r", test_prompt(1, 10), 50);
  engine.run_until("r", 3);
  const PauseAnswer answer = engine.pause(PauseMode::kAbort, true);
  engine.step();
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(answer.reset->success);
  EXPECT_EQ(engine.finished["r"].status, RequestStatus::kFinishedAborted);
  EXPECT_EQ(engine.tokens["r"].size(), 3u);

  engine.add("new", test_prompt(2, 10));
  for (int i = 0; i < 5; ++i) engine.step();
  EXPECT_TRUE(engine.core().is_paused());
  EXPECT_THAT(engine.tokens["new"], IsEmpty());
  ASSERT_TRUE(engine.core().resume_generation());
  engine.run();
  EXPECT_EQ(engine.tokens["new"], engine.cold(kA, test_prompt(2, 10)));
}

TEST_F(EngineCoreTest, PauseWaitRunsStartedOnesToTheirEnd) {
  TestEngine engine({.model = {.sequences_max = 1}}, store_.store);
  engine.add("started", test_prompt(1, 10), 8);
  engine.run_until("started", 1);
  engine.add("new", test_prompt(2, 10));
  const PauseAnswer answer = engine.pause(PauseMode::kWait, false);
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(engine.tokens["started"], engine.cold(kA, test_prompt(1, 10), 8));
  EXPECT_THAT(engine.tokens["new"], IsEmpty());
}

TEST_F(EngineCoreTest, PauseKeepWithoutClearGoesOnWhereItWas) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 10);
  engine.add("r", prompt, 8);
  engine.run_until("r", 3);
  EXPECT_TRUE(engine.pause(PauseMode::kKeep, false).complete);
  engine.add("s", prompt, 8);
  for (int i = 0; i < 5; ++i) engine.step();
  EXPECT_EQ(engine.tokens["r"].size(), 3u);
  EXPECT_THAT(engine.tokens["s"], IsEmpty());
  ASSERT_TRUE(engine.core().resume_generation());
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kA, prompt, 8));
  EXPECT_EQ(engine.finished["r"].counters.preemptions, 0u);
  EXPECT_EQ(engine.finished["r"].counters.computed_tokens, 17u);
}

TEST_F(EngineCoreTest, PauseKeepWithClearRecomputes) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 10);
  engine.add("r", prompt, 8);
  engine.add("s", test_prompt(2, 10), 8);
  for (int i = 0; i < 3; ++i) engine.step();
  const PauseAnswer answer = engine.pause(PauseMode::kKeep, true);
  EXPECT_TRUE(answer.complete);
  EXPECT_EQ(answer.reset->preempted, 2u);
  EXPECT_EQ(answer.reset->tainted_requests, 0u);
  ASSERT_TRUE(engine.core().resume_generation());
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kA, prompt, 8));
  EXPECT_EQ(engine.finished["r"].counters.preemptions, 1u);
  EXPECT_EQ(engine.finished["r"].counters.local_hit_tokens, 0u);
}

TEST_F(EngineCoreTest, PauseKeepWithALoadInFlight) {
  TestEngine other({.incarnation = 2}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 30);
  other.generate("x", prompt);
  other.settle_transfers();

  TestEngine engine({}, store_.store);
  engine.hold_transfers = true;
  engine.add("r", prompt);
  for (int i = 0; i < 3; ++i) engine.step();
  ASSERT_TRUE(engine.external().has_outstanding_load("r"));
  std::optional<PauseAnswer> answer;
  std::size_t used_blocks = 0;
  engine.core().pause_generation(PauseMode::kKeep, true, engine.in(5s), [&](PauseAnswer given) {
    answer = std::move(given);
    used_blocks = engine.pool().used_count();
  });
  engine.step();
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->complete);
  EXPECT_TRUE(answer->reset->success);
  EXPECT_EQ(answer->reset->preempted, 1u);
  EXPECT_EQ(used_blocks, 7u);  // the load may still write into them
  ASSERT_TRUE(engine.update(kB, "b"));
  ASSERT_TRUE(engine.core().resume_generation());
  engine.hold_transfers = false;
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kB, prompt));
  engine.settle_transfers();
  EXPECT_EQ(engine.pool().used_count(), 0u);
}

TEST_F(EngineCoreTest, PauseThatIsLateSaysWhatRemainsAndStaysPaused) {
  TestEngine engine({}, store_.store);
  engine.add("r", test_prompt(1, 10), 8);
  engine.run_until("r", 1);
  engine.executor().held = true;
  engine.step();
  const Time before = engine.clock().now();
  const PauseAnswer answer = engine.pause(PauseMode::kWait, true, 5s);
  EXPECT_FALSE(answer.complete);
  EXPECT_THAT(answer.running_requests, ElementsAre("r"));
  EXPECT_EQ(answer.steps_in_flight, 1u);
  EXPECT_TRUE(answer.reset->success);
  EXPECT_LE(engine.clock().now() - before, 5s + 100ms);
  EXPECT_TRUE(engine.core().is_paused());
}

TEST_F(EngineCoreTest, ResumeAnswersAPendingPause) {
  TestEngine engine({}, store_.store);
  engine.add("r", test_prompt(1, 10), 8);
  engine.run_until("r", 1);
  engine.executor().held = true;
  engine.step();
  std::optional<PauseAnswer> answer;
  engine.core().pause_generation(PauseMode::kKeep, false, engine.in(5s),
                                 [&](PauseAnswer given) { answer = std::move(given); });
  EXPECT_FALSE(answer.has_value());
  ASSERT_TRUE(engine.core().resume_generation());
  ASSERT_TRUE(answer.has_value());
  EXPECT_FALSE(answer->complete);
}

// --- resets ---

TEST_F(EngineCoreTest, ResetWithoutRunningRequestsLetsThemGoOnTainted) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 10);
  engine.add("r", prompt, 12);
  engine.run_until("r", 3);
  engine.settle_transfers();
  const CacheResetAnswer answer = engine.core().reset_prefix_cache(false, true, engine.in(5s));
  EXPECT_TRUE(answer.success);
  EXPECT_EQ(answer.tainted_requests, 1u);
  EXPECT_EQ(answer.preempted, 0u);
  EXPECT_EQ(answer.scope, ScopeOutcome::kNew);
  engine.run();
  engine.settle_transfers();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kA, prompt, 12));
  // It published nothing after the reset, here or outside.
  EXPECT_EQ(engine.generate("s", prompt).counters.local_hit_tokens, 0u);
  EXPECT_EQ(engine.finished["s"].counters.external_hit_tokens, 0u);
}

TEST_F(EngineCoreTest, RemoveAllAnswersFalseWhileRequestsHoldBlocks) {
  TestEngine engine({.reset_mode = ResetMode::kRemoveAll}, store_.store);
  engine.add("r", test_prompt(1, 10), 12);
  engine.run_until("r", 3);
  const CacheResetAnswer held = engine.core().reset_prefix_cache(false, true, engine.in(5s));
  EXPECT_FALSE(held.success);
  EXPECT_EQ(held.tainted_requests, 1u);
  EXPECT_EQ(store_.blocks(), 0u);  // the connector is wiped all the same, as upstream
  const CacheResetAnswer freed = engine.core().reset_caches(engine.in(5s));
  EXPECT_TRUE(freed.success) << freed.error;
  EXPECT_EQ(freed.preempted, 1u);
}

TEST_F(EngineCoreTest, SilentRankDegradesAResetWithinItsDeadline) {
  TestEngine engine({}, store_.store);
  engine.generate("r", test_prompt(1, 10));
  engine.silent_ranks = 1;
  const Time before = engine.clock().now();
  const CacheResetAnswer answer = engine.core().reset_caches(engine.in(5s));
  EXPECT_TRUE(answer.success);
  EXPECT_TRUE(answer.degraded);
  EXPECT_THAT(answer.silent_ranks, ElementsAre(1u));
  EXPECT_LE(engine.clock().now() - before, 5s);
  std::vector<std::string_view> names;
  for (const StepDuration& step : answer.steps) names.push_back(step.name);
  EXPECT_THAT(names, ElementsAre("fence", "requests", "connector"));
}

// --- sleep ---

class SleepTest : public EngineCoreTest {
 protected:
  static std::optional<SleepAnswer> fall_asleep(TestEngine& engine, int level, PauseMode mode) {
    std::optional<SleepAnswer> answer;
    engine.core().sleep(level, mode, engine.in(5s),
                        [&](SleepAnswer given) { answer = std::move(given); });
    for (int i = 0; i < 200 && !answer; ++i) {
      engine.step();
      engine.clock().advance(50ms);
    }
    return answer;
  }
};

TEST_F(SleepTest, LevelOneDropsKvAndKeepsTheScope) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 30);
  engine.add("r", prompt, 12);
  for (int i = 0; i < 4; ++i) engine.step();
  const auto answer = fall_asleep(engine, 1, PauseMode::kKeep);
  ASSERT_TRUE(answer && answer->status) << to_string(answer->status.error());
  EXPECT_TRUE(engine.core().is_sleeping());
  EXPECT_EQ(engine.core().resume_generation().error().code, Code::kBadRequest);
  EXPECT_EQ(engine.core().update_weights(TestModelRunner::set_weights(kB)).error().code,
            Code::kBadRequest);

  const std::vector<std::string> weights = {"weights"};
  EXPECT_EQ(engine.core().wake_up(weights).value(), false);
  EXPECT_TRUE(engine.core().is_sleeping());
  EXPECT_EQ(engine.core().wake_up(std::vector<std::string>{"kv_cache"}).value(), true);
  EXPECT_FALSE(engine.core().is_sleeping());
  engine.run();
  EXPECT_EQ(engine.tokens["r"], engine.cold(kA, prompt, 12));
}

TEST_F(SleepTest, LevelTwoReloadsWeightsAndSealsUntilThen) {
  TestEngine engine({}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 30);
  ASSERT_TRUE(engine.update(kB, "b"));
  engine.generate("b", prompt);
  engine.settle_transfers();
  const auto answer = fall_asleep(engine, 2, PauseMode::kAbort);
  ASSERT_TRUE(answer && answer->status);
  EXPECT_TRUE(engine.core().fence().sealed());
  EXPECT_EQ(engine.core().wake_up({}).value(), true);
  engine.generate("r", prompt);
  EXPECT_EQ(engine.tokens["r"], engine.cold(kA, prompt));  // the toy model reloads its first
  EXPECT_EQ(engine.finished["r"].counters.external_hit_tokens, 0u);
}

TEST_F(SleepTest, WaitsForSavesUnderWayAndGivesUpAtTheDeadline) {
  TestEngine engine({}, store_.store);
  engine.add("r", test_prompt(1, 30));
  engine.run_until("r", 1);
  ASSERT_TRUE(engine.core().scheduler().has_pending_push_work());
  engine.executor().held = true;  // nobody reports
  const auto late = fall_asleep(engine, 1, PauseMode::kAbort);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->status.error().code, Code::kDeadline);
  EXPECT_TRUE(engine.core().is_paused());

  engine.executor().release();
  const auto asleep = fall_asleep(engine, 1, PauseMode::kAbort);
  ASSERT_TRUE(asleep.has_value());
  EXPECT_TRUE(asleep->status.has_value());
}

TEST_F(SleepTest, UnknownTagsAndLevelsAreRefused) {
  TestEngine engine({}, store_.store);
  EXPECT_EQ(fall_asleep(engine, 3, PauseMode::kAbort)->status.error().code, Code::kBadRequest);
  EXPECT_FALSE(engine.core().is_paused());
  EXPECT_EQ(engine.core().wake_up(std::vector<std::string>{"gpu"}).error().code, Code::kBadRequest);
}

// --- weights ---

// An operator's fence (`newmoon ctl fence`) of one rank of two.
TEST_F(EngineCoreTest, ARankFencedAloneLeavesUniqueScopesUntilTheOtherOneIs) {
  TestEngine engine({.blocks = 24}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 30);
  engine.generate("named", prompt);
  engine.settle_transfers();
  engine.worker(1).weights_written();

  ASSERT_TRUE(engine.update(kB, "b"));
  EXPECT_TRUE(is_unique(engine));
  EXPECT_EQ(hits(engine.generate("b", prompt)), 0u);
  EXPECT_EQ(engine.tokens["b"], engine.cold(kB, prompt));
  engine.settle_transfers();
  engine.generate("fills the local cache", test_prompt(2, 86));
  engine.settle_transfers();
  EXPECT_EQ(engine.generate("b again", prompt).counters.external_hit_tokens, 28u);
  EXPECT_EQ(engine.tokens["b again"], engine.cold(kB, prompt));

  ASSERT_TRUE(engine.update(kA, "a"));
  EXPECT_TRUE(is_unique(engine));
  EXPECT_EQ(hits(engine.generate("a", prompt)), 0u) << "the fence of a rank is not forgotten";
  EXPECT_EQ(engine.tokens["a"], engine.cold(kA, prompt));
  engine.settle_transfers();

  engine.worker(0).weights_written();
  engine.generate("refused, and begun anew", test_prompt(3, 10));
  EXPECT_FALSE(is_unique(engine));
  EXPECT_EQ(engine.generate("found", prompt).counters.external_hit_tokens, 28u);
  EXPECT_EQ(engine.tokens["found"], engine.cold(kA, prompt));
}

// What an update writes on one rank before its finish and on the other one behind it.
TEST_F(EngineCoreTest, AWriteThatReachesARankBehindTheFinishIsMet) {
  for (const bool in_flight : {false, true}) {
    TestEngine engine({}, store_.store);
    const std::vector<Token> prompt = test_prompt(1, 30);
    ASSERT_TRUE(engine.core().start_weight_update());
    const Epoch sealed = engine.core().fence().epoch();
    for (int i = 0; i < 2; ++i) engine.worker(0).note_weight_write(sealed);
    ASSERT_TRUE(engine.core().finish_weight_update("b"));
    EXPECT_TRUE(is_unique(engine));
    engine.generate("between", prompt);
    engine.settle_transfers();

    if (in_flight) {
      engine.executor().held = true;
      engine.add("r", prompt);
      for (int i = 0; i < 3; ++i) engine.step();
      EXPECT_EQ(engine.executor().waiting_steps(), 1u);
    }
    engine.worker(1).note_weight_write(sealed);
    ASSERT_TRUE(engine.runner().update_weights(TestModelRunner::set_weights(kB)));
    engine.worker(1).note_weight_write(sealed);
    engine.executor().release();
    if (!in_flight) engine.add("r", prompt);
    engine.run();
    engine.settle_transfers();
    EXPECT_EQ(engine.tokens["r"], engine.cold(kB, prompt)) << in_flight;
    EXPECT_FALSE(is_unique(engine)) << "both ranks have counted two writes";
    const ScopeId b = *engine.core().fence().scope_id();

    TestEngine other({.incarnation = 2}, store_.store);
    ASSERT_TRUE(other.update(kB, "b"));
    EXPECT_EQ(*other.core().fence().scope_id(), b);
    other.generate("r", prompt);
    EXPECT_EQ(other.tokens["r"], other.cold(kB, prompt)) << in_flight;
  }
}

TEST_F(EngineCoreTest, UpdateWithoutFinishIsAdoptedAtTheNextStep) {
  TestEngine engine({.identity = IdentityMode::kUnique}, store_.store);
  ASSERT_TRUE(engine.core().update_weights(TestModelRunner::set_weights(kB)));
  EXPECT_TRUE(engine.core().fence().sealed());
  engine.step();
  EXPECT_TRUE(engine.core().fence().sealed());  // nothing was scheduled
  const std::vector<Token> prompt = test_prompt(1, 30);
  engine.generate("r", prompt);
  EXPECT_EQ(engine.tokens["r"], engine.cold(kB, prompt));
  ASSERT_FALSE(engine.core().fence().sealed());
  EXPECT_TRUE(is_unique(engine));
}

TEST_F(EngineCoreTest, FailedUpdateStaysSealedWithoutADigest) {
  TestEngine engine({.identity = IdentityMode::kUnique}, store_.store);
  engine.runner().fail_next_update({Code::kInternal, "no such tensor"});
  EXPECT_FALSE(engine.update(kB, "b"));
  engine.generate("r", test_prompt(1, 10));
  EXPECT_TRUE(engine.core().fence().sealed());
}

// The engine's own cache is in use all the same.
TEST_F(EngineCoreTest, AWriteIsMetWhileTheEngineIsSealed) {
  TestEngine engine({.identity = IdentityMode::kUnique}, store_.store);
  const std::vector<Token> prompt = test_prompt(1, 30);
  engine.runner().fail_next_update({Code::kInternal, "no such tensor"});
  EXPECT_FALSE(engine.update(kB, "b"));
  engine.generate("a", prompt);
  EXPECT_GT(hits(engine.generate("a again", prompt)), 0u);

  ASSERT_TRUE(engine.runner().update_weights(TestModelRunner::set_weights(kB)));
  engine.worker(1).weights_written();
  engine.generate("b", prompt);
  EXPECT_EQ(engine.tokens["b"], engine.cold(kB, prompt));
  EXPECT_TRUE(engine.core().fence().sealed());
}

TEST_F(EngineCoreTest, LabelIsTrustedOnlyIfRenewedAfterTheWrite) {
  TestEngine engine({.identity = IdentityMode::kTrustedLabel, .weight_version = "step-0"},
                    store_.store);
  const auto is_label = [&] {
    return std::holds_alternative<LabelIdentity>(engine.core().fence().scope()->weights);
  };
  EXPECT_TRUE(is_label());
  ASSERT_TRUE(engine.update(kB, "step-0"));  // the label says nothing of this write
  EXPECT_FALSE(is_label());
  ASSERT_TRUE(engine.update(kA, "step-1"));
  EXPECT_TRUE(is_label());
  ASSERT_TRUE(engine.update(kA, "default"));
  EXPECT_FALSE(is_label());
}

// A write past the engine, or an operator's fence, between the label and the first step.
TEST_F(EngineCoreTest, ALabelFromBeforeAWriteNamesNothing) {
  for (const bool both : {false, true}) {
    TestEngine engine({.identity = IdentityMode::kTrustedLabel, .weight_version = "step-0"},
                      store_.store);
    ASSERT_TRUE(engine.core().update_weights(TestModelRunner::set_weights(kB)));
    engine.core().set_weight_version("step-1");
    engine.worker(0).weights_written();
    if (both) engine.worker(1).weights_written();
    engine.generate("r", test_prompt(1, 10));
    EXPECT_TRUE(is_unique(engine)) << both;

    ASSERT_TRUE(engine.core().update_weights(TestModelRunner::set_weights(kA)));
    engine.core().set_weight_version("step-2");
    engine.generate("s", test_prompt(1, 10));
    EXPECT_EQ(is_unique(engine), !both) << "told behind the write";
  }
}

TEST_F(EngineCoreTest, NoLabelOutsideANamespace) {
  TestEngine engine(
      {.identity = IdentityMode::kTrustedLabel, .name_space = "", .weight_version = "step-0"},
      store_.store);
  EXPECT_TRUE(engine.core().fence().scope()->is_unique());
}

TEST_F(EngineCoreTest, SecondStartAndStrayFinishAreRefused) {
  TestEngine engine({}, store_.store);
  EXPECT_EQ(engine.core().finish_weight_update("x").error().code, Code::kBadRequest);
  ASSERT_TRUE(engine.core().start_weight_update());
  EXPECT_EQ(engine.core().start_weight_update().error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace newmoon
