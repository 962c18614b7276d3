// The scheduler without a model: steps are answered by the test. Without connector,
// or with the production StoreScheduler whose ranks are the test.
#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "admin/testing/fake_transport.h"
#include "base/contain.h"
#include "base/log.h"
#include "base/testing/failing_new.h"
#include "base/testing/out_of_memory.h"
#include "connector/testing/vector_block_memory.h"
#include "store/memory_store.h"

namespace newmoon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SchedulerTest : public ::testing::Test {
 protected:
  struct Setup {
    std::size_t blocks = 33;
    int slots = 4;
    int step_tokens_max = 32;
    int prefill_tokens_min = 1;
    bool connector = false;
  };

  void make(const Setup& setup) {
    ModelInfo info;
    info.vocab_size = 1000;
    info.context_tokens_max = 128;
    info.block_size = 4;
    info.sequences_max = setup.slots;
    info.step_tokens_max = setup.step_tokens_max;
    info.prefill_tokens_min = setup.prefill_tokens_min;
    pool_ = std::make_unique<BlockPool>(
        BlockPool::Options{.block_count = setup.blocks, .block_size = 4, .enable_kv_events = true},
        fence_.epoch());
    if (setup.connector) {
      store_scheduler_ = std::make_unique<StoreScheduler>(StoreScheduler::Options{.block_size = 4},
                                                          fence_, client_, *pool_);
      connector_.emplace(StoreConnector::for_scheduler(*store_scheduler_));
    }
    scheduler_ = std::make_unique<Scheduler>(
        Scheduler::Options{},
        Scheduler::Parts{.info = info,
                         .hasher = hasher_,
                         .fence = fence_,
                         .pool = *pool_,
                         .connector = connector_ ? &*connector_ : nullptr,
                         .clock = clock_,
                         .purge = [this](const Scope& scope) { purged_.push_back(scope); }});
    scheduler_->adopt(DigestIdentity{});
  }

  void add(const RequestId& id, std::size_t prompt_tokens, std::uint32_t max_tokens = 8,
           Token first = 1, bool continues = false) {
    RequestInput input;
    input.id = id;
    for (std::size_t i = 0; i < prompt_tokens; ++i) {
      input.prompt.push_back(first + static_cast<Token>(i));
    }
    input.max_tokens = max_tokens;
    input.continue_across_update = continues;
    ASSERT_TRUE(scheduler_->add_request(std::move(input)));
  }
  Status try_add(const RequestId& id, std::size_t prompt_tokens) {
    RequestInput input;
    input.id = id;
    input.prompt.assign(prompt_tokens, 1);
    return scheduler_->add_request(std::move(input));
  }
  std::optional<SchedulerOutput> schedule() { return scheduler_->schedule("v"); }
  // Tokens scheduled of each sequence.
  static std::vector<std::size_t> sizes(const std::optional<SchedulerOutput>& output) {
    std::vector<std::size_t> tokens;
    for (const SequenceStep& sequence : output->input.sequences) {
      tokens.push_back(sequence.tokens.size());
    }
    return tokens;
  }
  // The step ended; every sequence that wanted a token said 7.
  void finish(const SchedulerOutput& step, std::vector<WorkerReport> workers = {}) {
    ModelRunnerOutput output{.step_id = step.step_id, .output = StepOutput{}, .workers = {}};
    for (const SequenceStep& sequence : step.input.sequences) {
      std::optional<SampledToken>& sampled = output.output->sampled.emplace_back();
      if (sequence.sampling != nullptr) sampled.emplace().token = 7;
    }
    output.workers = std::move(workers);
    scheduler_->update_from_output(output);
  }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (const auto step = schedule()) finish(*step);
    }
  }
  CacheResetAnswer reset(bool reset_running_requests, bool reset_connector = false) {
    return scheduler_->reset_prefix_cache(reset_running_requests, reset_connector,
                                          clock_.now() + std::chrono::seconds(5));
  }

  // --- with connector: rank 0 of 1 is the test ---
  void answer_lookup(std::uint32_t hit_tokens) {
    for (const auto& [peer, frames] : std::exchange(transport_.sent, {})) {
      const auto request = decode_request(frames, {});
      if (!request || !std::holds_alternative<LookupRequest>(request->body)) continue;
      transport_.deliver(peer, encode_reply(*request, hit_tokens));
    }
  }
  static WorkerReport loaded(std::uint64_t load_id, std::vector<BlockId> failed = {}) {
    WorkerReport report;
    report.loads.push_back({.load_id = load_id, .failed_blocks = std::move(failed)});
    return report;
  }
  // A request of 21 tokens whose first 20 are being loaded; the step with the load.
  SchedulerOutput start_load(const RequestId& id, Token first = 1) {
    add(id, 21, 8, first);
    EXPECT_FALSE(schedule().has_value());
    answer_lookup(20);
    std::optional<SchedulerOutput> step = schedule();
    EXPECT_TRUE(step.has_value());
    EXPECT_THAT(step->connector.loads, SizeIs(1));
    EXPECT_THAT(step->input.sequences, IsEmpty());
    return *step;
  }

  testing::FakeClock clock_;
  testing::FakeTransport transport_{clock_, 1};
  LookupKeyClient client_{transport_, clock_, {}};
  Fence fence_{{.name_space = "n", .model = "m", .layout = "l", .incarnation = {}}};
  BlockHasher hasher_{HashAlgo::kSha256Cbor, 4, "0"};
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<StoreScheduler> store_scheduler_;
  std::optional<StoreConnector> connector_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Scope> purged_;
};

// --- the seed's tests of the scheduler ---

TEST_F(SchedulerTest, test_reset_connector_cache_no_connector_is_no_op_success) {
  make({});
  std::vector<std::string> lines;
  set_log_threshold(LogLevel::kDebug);
  set_log_sink([&](LogLevel level, std::string_view, std::string_view message) {
    if (level == LogLevel::kDebug) lines.emplace_back(message);
  });
  EXPECT_TRUE(scheduler_->reset_connector_cache(clock_.now()).success);
  set_log_sink({});
  set_log_threshold(LogLevel::kWarning);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("no connector")));
  EXPECT_TRUE(reset(false, true).success);
}

// Upstream takes it for success: None is not False.
TEST_F(SchedulerTest, ConnectorThatCannotResetIsAFailure) {
  InlineExecutor executor;
  MemoryStore store({.budget_bytes = 1 << 20}, clock_, executor);
  testing::VectorBlockMemory memory(2);
  StoreWorker worker({}, store, memory, clock_, executor, executor);
  make({.connector = true});
  *connector_ = StoreConnector::for_worker(worker);
  const ResetAnswer answer = scheduler_->reset_connector_cache(clock_.now());
  EXPECT_FALSE(answer.success);
  EXPECT_THAT(answer.error, HasSubstr("cannot reset"));
}

TEST_F(SchedulerTest, test_scheduler_reset_prefix_cache) {
  make({});
  add("a", 10);
  add("b", 10, 8, 100);
  run(2);
  // Upstream answers false here; the fence makes it true, and says who is tainted.
  const CacheResetAnswer kept = reset(false);
  EXPECT_TRUE(kept.success);
  EXPECT_EQ(kept.tainted_requests, 2u);
  EXPECT_EQ(scheduler_->num_running(), 2u);

  const CacheResetAnswer preempted = reset(true);
  EXPECT_TRUE(preempted.success);
  EXPECT_EQ(preempted.preempted, 2u);
  EXPECT_EQ(scheduler_->num_running(), 0u);
  EXPECT_THAT(scheduler_->unfinished(false), ElementsAre("a", "b"));  // order kept
  EXPECT_EQ(pool_->used_count(), 0u);
  // Output kept: prompt and two tokens are computed again.
  EXPECT_THAT(sizes(schedule()), ElementsAre(12, 12));
}

// --- queues ---

TEST_F(SchedulerTest, PromptsAreChunkedUnderTheBudgetAndWhoRunsGoesFirst) {
  make({.step_tokens_max = 16});
  add("short", 3, 8, 200);
  run(1);
  add("long", 40);
  auto step = schedule();
  EXPECT_THAT(sizes(step), ElementsAre(1, 15));
  EXPECT_EQ(step->input.sequences[1].sampling, nullptr);
  finish(*step);
  step = schedule();
  EXPECT_THAT(sizes(step), ElementsAre(1, 15));
  finish(*step);
  step = schedule();
  EXPECT_THAT(sizes(step), ElementsAre(1, 10));
  EXPECT_NE(step->input.sequences[1].sampling, nullptr);
}

TEST_F(SchedulerTest, FirstComeFirstServedWithinSlots) {
  make({.slots = 2});
  add("a", 4);
  add("b", 4, 8, 100);
  add("c", 4, 8, 200);
  const auto step = schedule();
  EXPECT_THAT(sizes(step), ElementsAre(4, 4));
  EXPECT_EQ(scheduler_->num_waiting(), 1u);
  finish(*step);
  EXPECT_THAT(sizes(schedule()), ElementsAre(1, 1));
}

TEST_F(SchedulerTest, RequestInFlightIsNotScheduledAgain) {
  make({});
  add("a", 4);
  const auto first = schedule();
  add("b", 4, 8, 100);
  const auto second = schedule();
  EXPECT_THAT(sizes(first), ElementsAre(4));
  EXPECT_THAT(sizes(second), ElementsAre(4));
  EXPECT_EQ(second->input.sequences[0].slot, 1);
  EXPECT_FALSE(schedule().has_value());
  EXPECT_EQ(scheduler_->steps_in_flight(), 2u);
}

TEST_F(SchedulerTest, NewestIsPreemptedOnShortage) {
  make({.blocks = 7});  // 6 usable
  add("a", 10, 12);
  add("b", 10, 12, 100);
  run(3);
  EXPECT_EQ(scheduler_->num_running(), 2u);  // 3 blocks each
  run(1);                                    // both want a fourth block at 13 tokens
  EXPECT_EQ(scheduler_->num_running(), 1u);
  EXPECT_THAT(scheduler_->unfinished(false), ElementsAre("a", "b"));
  run(60);
  EXPECT_THAT(scheduler_->unfinished(false), IsEmpty());
  EXPECT_EQ(pool_->used_count(), 0u);
}

// Rule STEP.
TEST_F(SchedulerTest, BlocksOfAStepInFlightStayTakenUntilItEnds) {
  make({});
  add("a", 10);
  const auto step = schedule();
  ASSERT_TRUE(reset(true).success);
  EXPECT_EQ(pool_->used_count(), 3u);
  // Computed again at once, elsewhere.
  const auto again = schedule();
  for (const BlockId block : again->input.sequences[0].blocks) {
    EXPECT_THAT(step->input.sequences[0].blocks, ::testing::Not(::testing::Contains(block)));
  }
  finish(*step);  // stale: its token is dropped
  EXPECT_EQ(pool_->used_count(), 3u);
  EXPECT_THAT(scheduler_->take_outputs(), IsEmpty());
  finish(*again);
  EXPECT_THAT(scheduler_->take_outputs(), SizeIs(1));
}

TEST_F(SchedulerTest, AbortedRequestsBlocksStayTakenWhileItsStepIsInFlight) {
  make({});
  add("a", 10);
  const auto step = schedule();
  scheduler_->finish_requests({}, RequestStatus::kFinishedAborted);
  EXPECT_EQ(pool_->used_count(), 3u);
  add("a", 10, 8, 500);  // the id is free again; the old step has no say in it
  finish(*step);
  EXPECT_EQ(pool_->used_count(), 0u);
  const auto outputs = scheduler_->take_outputs();
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].status, RequestStatus::kFinishedAborted);
}

TEST_F(SchedulerTest, ChunksNeverLeaveTooShortARemainder) {
  make({.step_tokens_max = 16, .prefill_tokens_min = 6});
  add("a", 18);
  const auto first = schedule();
  EXPECT_THAT(sizes(first), ElementsAre(12));  // 16 would leave 2
  finish(*first);
  const auto second = schedule();
  EXPECT_THAT(sizes(second), ElementsAre(6));
  finish(*second);
  EXPECT_THAT(sizes(schedule()), ElementsAre(1));  // decoding is no prompt
}

TEST_F(SchedulerTest, LocalHitLeavesEnoughToCompute) {
  make({.prefill_tokens_min = 4});
  add("a", 17, 1);
  run(1);
  add("b", 17, 1);
  const auto step = schedule();
  // 16 tokens are cached; one would be left, so another block is computed.
  EXPECT_EQ(step->input.sequences[0].num_computed_tokens, 12u);
  EXPECT_THAT(sizes(step), ElementsAre(5));
  EXPECT_TRUE(step->input.sequences[0].restart);
}

TEST_F(SchedulerTest, PrefixIsNotSharedBeforeItIsComputed) {
  make({});
  add("a", 16);
  add("b", 16);
  const auto step = schedule();
  EXPECT_THAT(sizes(step), ElementsAre(16, 16));
}

// --- fences ---

TEST_F(SchedulerTest, StepScheduledBeforeAFencePublishesNothing) {
  make({});
  add("a", 16, 8, 1, true);
  const auto step = schedule();
  scheduler_->seal(false);
  finish(*step);  // it asked to continue, so its token counts
  EXPECT_THAT(scheduler_->take_outputs(), SizeIs(1));
  add("b", 16);
  const auto next = schedule();
  EXPECT_EQ(next->input.sequences.back().num_computed_tokens, 0u);
}

TEST_F(SchedulerTest, ContinuingRequestRestartsFromWholeBlocks) {
  make({});
  add("a", 10, 8, 1, true);
  add("b", 10, 8, 100);
  run(1);
  scheduler_->seal(false);
  scheduler_->adopt(std::nullopt);
  EXPECT_EQ(scheduler_->num_running(), 1u);
  const auto step = schedule();
  ASSERT_THAT(step->input.sequences, SizeIs(2));
  EXPECT_TRUE(step->input.sequences[0].restart);
  EXPECT_EQ(step->input.sequences[0].num_computed_tokens, 8u);
  EXPECT_EQ(step->input.sequences[1].num_computed_tokens, 0u);
}

// Rule BIRTH: a block begun in one epoch and filled in another is of the older one.
TEST_F(SchedulerTest, BlockFilledAcrossAFenceIsNotPublished) {
  make({});
  add("a", 2);
  run(1);
  EXPECT_EQ(reset(false).tainted_requests, 1u);
  run(4);  // its first block is full now: 1 2 7 7
  RequestInput same;
  same.id = "b";
  same.prompt = {1, 2, 7, 7, 9};
  ASSERT_TRUE(scheduler_->add_request(std::move(same)));
  EXPECT_EQ(schedule()->input.sequences.back().num_computed_tokens, 0u);
}

TEST_F(SchedulerTest, TaintEndsWhenAllBlocksAreDropped) {
  make({});
  add("a", 16);
  run(1);
  EXPECT_EQ(reset(false).tainted_requests, 1u);
  EXPECT_EQ(reset(true).preempted, 1u);
  run(1);
  add("b", 16, 1);
  EXPECT_EQ(schedule()->input.sequences.back().num_computed_tokens, 12u);
}

TEST_F(SchedulerTest, OnlyUniqueScopesArePurged) {
  make({});
  scheduler_->seal(false);  // leaves a named scope
  scheduler_->adopt(std::nullopt);
  EXPECT_THAT(purged_, IsEmpty());
  const Scope unique = *fence_.scope();
  scheduler_->seal(false);
  EXPECT_THAT(purged_, ElementsAre(unique));
}

TEST_F(SchedulerTest, AllBlocksClearedIsAnnouncedWhileNothingRuns) {
  make({});
  scheduler_->take_events();
  scheduler_->set_pause_state(PauseState::kPausedAll);
  reset(true);
  const std::vector<KvEvent> events = scheduler_->take_events();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(std::get<AllBlocksCleared>(events[0]).epoch, fence_.epoch());
}

// --- external loads ---

TEST_F(SchedulerTest, LoadHoldsUpNobody) {
  make({.slots = 1, .connector = true});
  const SchedulerOutput step = start_load("a");
  add("b", 3, 2, 300);
  const auto other = schedule();
  EXPECT_THAT(sizes(other), ElementsAre(3));
  finish(step, {loaded(step.connector.loads[0].load_id)});
  finish(*other);
  run(1);  // "b" ends
  const auto next = schedule();
  EXPECT_EQ(next->input.sequences[0].num_computed_tokens, 20u);
  EXPECT_THAT(sizes(next), ElementsAre(1));
}

TEST_F(SchedulerTest, FailedBlocksKeepTheGoodPrefix) {
  make({.connector = true});
  const SchedulerOutput step = start_load("a");
  const LoadJob& load = step.connector.loads[0];
  ASSERT_THAT(load.blocks, SizeIs(5));
  finish(step, {loaded(load.load_id, {load.blocks[3].block})});
  const auto next = schedule();
  EXPECT_EQ(next->input.sequences[0].num_computed_tokens, 12u);
  EXPECT_THAT(sizes(next), ElementsAre(9));
}

// Rules STEP and ONE-LOAD.
TEST_F(SchedulerTest, FenceDuringALoadDropsItAndItsBlocksStayTaken) {
  make({.connector = true});
  const SchedulerOutput step = start_load("a");
  EXPECT_EQ(reset(false).preempted, 1u);  // a cancelled load fails all
  EXPECT_EQ(pool_->used_count(), 5u);
  const auto again = schedule();
  ASSERT_TRUE(again.has_value());
  EXPECT_THAT(sizes(again), ElementsAre(21));  // no second load beside the first
  for (const BlockRef& block : step.connector.loads[0].blocks) {
    EXPECT_THAT(again->input.sequences[0].blocks, ::testing::Not(::testing::Contains(block.block)));
  }
  finish(step, {loaded(step.connector.loads[0].load_id)});
  EXPECT_EQ(pool_->used_count(), 6u);
}

TEST_F(SchedulerTest, FenceDropsWhatWaitsLoaded) {
  make({.slots = 1, .connector = true});
  const SchedulerOutput step = start_load("a");
  add("b", 3, 20, 400);
  const auto taken = schedule();
  ASSERT_THAT(sizes(taken), ElementsAre(3));
  finish(step, {loaded(step.connector.loads[0].load_id)});
  ASSERT_EQ(scheduler_->num_waiting(), 1u);  // loaded, and without a slot
  EXPECT_EQ(pool_->used_count(), 5u + 1u);
  scheduler_->seal(false);
  EXPECT_EQ(pool_->used_count(), 1u);  // of the step in flight
}

TEST_F(SchedulerTest, RankThatMetOtherWeightsSealsAndDropsTheStep) {
  make({.connector = true});
  add("a", 3, 8);
  const auto step = schedule();
  ASSERT_THAT(sizes(step), ElementsAre(3));
  WorkerReport report;
  report.unbound_epoch = step->epoch;
  finish(*step, {report});
  EXPECT_TRUE(fence_.sealed());
  EXPECT_TRUE(scheduler_->take_unbound());
  EXPECT_FALSE(scheduler_->take_unbound());
  EXPECT_THAT(scheduler_->take_outputs(), IsEmpty());
  EXPECT_EQ(scheduler_->num_running(), 0u);
}

// --- memory that runs out ---

TEST_F(SchedulerTest, WithoutMemoryARequestGoesOnOrHasAnEndThatIsTold) {
  bool has_failed = true;
  for (std::size_t count = 0; has_failed; ++count) {
    make({});
    const std::string name(40, 'a');  // long texts, so that there is much to allocate
    {
      const testing::NoMemoryAfter none(count);
      (void)contain([&] { (void)try_add(name, 20); });
      has_failed = none.has_failed();
    }
    run(1);
    {
      const testing::NoMemoryAfter none(count);
      (void)contain([&] { scheduler_->finish_requests({}, RequestStatus::kFinishedAborted); });
      has_failed = has_failed || none.has_failed();
    }
    std::vector<RequestOutput> outputs = scheduler_->take_outputs();
    const bool has_ended = !outputs.empty() && outputs.back().finished;
    const bool is_there = !scheduler_->unfinished(false).empty();
    EXPECT_FALSE(has_ended && is_there) << count;
    scheduler_->finish_requests({}, RequestStatus::kFinishedAborted);
    EXPECT_EQ(scheduler_->take_outputs().size(), is_there ? 1u : 0u) << count;
    EXPECT_TRUE(try_add(name, 20)) << count << ": the id is free, whatever became of it";
  }
}

TEST_F(SchedulerTest, WithoutMemoryAFenceIsDoneOrKnownToBeHalfDone) {
  bool has_failed = true;
  std::size_t done = 0;
  std::size_t half_done = 0;
  for (std::size_t count = 0; has_failed; ++count) {
    make({});
    for (const char* name : {"a", "b", "c"}) add(name, 8);
    run(1);
    const auto step = schedule();
    ASSERT_TRUE(step);
    Epoch epoch = fence_.epoch();
    {
      const testing::NoMemoryAfter none(count);
      (void)contain([&] { reset(true); });
      has_failed = none.has_failed();
    }
    if (fence_.epoch() == epoch) continue;
    ++(scheduler_->fence_half_done() ? half_done : done);
    if (scheduler_->fence_half_done()) continue;
    finish(*step);
    EXPECT_EQ(pool_->used_count(), 0u) << count << ": nobody has kept what is stale";
    EXPECT_EQ(scheduler_->num_waiting(), 3u) << count;
  }
  EXPECT_GT(done, 0u);
  EXPECT_GT(half_done, 0u);
}

}  // namespace
}  // namespace newmoon
