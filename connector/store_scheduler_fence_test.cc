// The scheduler's end across fences, and its resets.
#include <gmock/gmock.h>

#include "base/contain.h"
#include "base/log.h"
#include "base/testing/out_of_memory.h"
#include "connector/testing/ranks_fixture.h"

namespace newmoon::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoreSchedulerFenceTest : public RanksFixture {
 protected:
  // An update: other weights, verified.
  void change_weights(std::uint8_t digest) {
    fence_.seal();
    scheduler_->on_fence();
    for (auto& rank : ranks_) rank->worker.note_weight_write(fence_.epoch());
    fence_.adopt(DigestIdentity{{digest}});
    scheduler_->on_fence();
  }
};

TEST_F(StoreSchedulerFenceTest, OtherWeightsFindNothingAndTheFirstFindTheirsAgain) {
  preload(2);
  ASSERT_EQ(match("a", 40), 32u);
  change_weights(2);
  EXPECT_EQ(match("a", 40), 0u);
  change_weights(1);
  EXPECT_EQ(match("b", 40), 32u);
}

// Upstream keeps the finished future: a stale hit becomes a load.
TEST_F(StoreSchedulerFenceTest, ALookupOfTheOldEpochIsForgotten) {
  preload(2);
  const auto chain = hashes(2);
  EXPECT_FALSE(scheduler_->get_num_new_matched_tokens("a", 40, chain, 0));  // on its way
  change_weights(2);
  EXPECT_EQ(match("a", 40), 0u);
}

TEST_F(StoreSchedulerFenceTest, AFenceTellsEveryRankAndWaitsForNone) {
  lost_ = {1};
  const Time before = clock_.now();
  fence_.seal();
  scheduler_->on_fence();
  EXPECT_EQ(clock_.now(), before);
  EXPECT_EQ(worker(0).status().floor, fence_.epoch());
  EXPECT_LT(worker(1).status().floor, fence_.epoch());
}

// Late put, and rank 1 is not fenced: its message was lost, the save is still queued.
TEST_F(StoreSchedulerFenceTest, ASaveQueuedAcrossAFenceKeepsItsPinsUntilReported) {
  compute({1});
  const ConnectorMetadata metadata = step("a", 16, {1});
  execute(0, metadata);
  execute(1, metadata);
  lost_ = {1};
  fence_.reset(false);
  scheduler_->on_fence();
  collect();  // rank 0 dropped its job at the fence
  EXPECT_EQ(pins_.pins[1], 1);
  ranks_[1]->run_all();  // rank 1 stores it, as it may: bytes and scope are those of the old epoch
  collect();
  EXPECT_EQ(pins_.pins[1], 0);
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
  EXPECT_EQ(match("b", 40), 0u);  // not in the scope that is current
}

// Rule HOLD begins with the loads: one that ends after the fence is for nobody.
TEST_F(StoreSchedulerFenceTest, ALoadInFlightIsCancelledAndFailsAllItsBlocks) {
  preload(2);
  start_load("a", 2);
  const ConnectorMetadata metadata = scheduler_->build_connector_meta({});
  execute(0, metadata);
  execute(1, metadata);
  ranks_[0]->run_all();  // has ended well on rank 0
  fence_.reset(false);
  scheduler_->on_fence();
  EXPECT_TRUE(scheduler_->has_outstanding_load("a"));  // rule STEP: rank 1 might still write
  const ConnectorOutput output = collect();
  ASSERT_THAT(output.loads, SizeIs(1));
  EXPECT_TRUE(output.loads[0].cancelled);
  EXPECT_THAT(output.loads[0].failed_blocks, ElementsAre(11, 12));
}

TEST_F(StoreSchedulerFenceTest, ALoadNotHandedOutEndsWithTheFence) {
  preload(1);
  start_load("a", 1);
  fence_.reset(false);
  scheduler_->on_fence();
  EXPECT_FALSE(scheduler_->has_outstanding_load("a"));
  EXPECT_THAT(scheduler_->build_connector_meta({}).loads, IsEmpty());
  const ConnectorOutput output = update({});
  ASSERT_THAT(output.loads, SizeIs(1));
  EXPECT_TRUE(output.loads[0].cancelled);
}

// Taken back or not, it ends once, and is told.
TEST_F(StoreSchedulerFenceTest, WithoutMemoryALoadNotHandedOutIsNotLost) {
  preload(2);
  bool has_failed = true;
  for (std::size_t count = 0; has_failed; ++count) {
    const std::string id = "request " + std::to_string(count) + std::string(40, 'x');
    start_load(id, 2);
    {
      const NoMemoryAfter none(count);
      const Status finished = contain([&] { scheduler_->request_finished(id); });
      has_failed = none.has_failed();
      EXPECT_EQ(finished.has_value(), !has_failed);
    }
    const ConnectorOutput output = run(scheduler_->build_connector_meta({}));
    ASSERT_THAT(output.loads, SizeIs(1)) << count;
    EXPECT_TRUE(output.loads[0].cancelled) << count;
    EXPECT_FALSE(scheduler_->has_pending_push_work()) << count;
  }
}

// Rule BIRTH: a request that runs across an update (keep without clearing).
TEST_F(StoreSchedulerFenceTest, TaintedBlocksAreNeverPublished) {
  compute({1, 2});
  run(step("a", 24, {1, 2}));
  change_weights(2);
  // Block 2 was begun before the fence; block 3 attends to both.
  EXPECT_THAT(step("a", 48, {1, 2, 3}).saves, IsEmpty());
  // The request is preempted and recomputes everything.
  scheduler_->request_finished("a");
  compute({4, 5});
  EXPECT_THAT(step("a", 32, {4, 5}).saves.at(0).blocks, SizeIs(2));
}

TEST_F(StoreSchedulerFenceTest, BlocksOfUnknownBirthAndTheNullBlockAreNeverPublished) {
  compute({1, kNullBlock});
  EXPECT_THAT(step("a", 48, {7, kNullBlock, 8}).saves, IsEmpty());
}

TEST_F(StoreSchedulerFenceTest, NothingIsPublishedWhileSealed) {
  fence_.seal();
  scheduler_->on_fence();
  compute({1});
  const ConnectorMetadata metadata = step("a", 16, {1});
  EXPECT_THAT(metadata.saves, IsEmpty());
  EXPECT_THAT(metadata.weight_writes, IsEmpty());
  EXPECT_FALSE(scheduler_->update_state_after_alloc("a", load_blocks(1), hashes(1), 0, 16));
}

// A step scheduled before an update and run after it, on a rank that heard nothing.
TEST_F(StoreSchedulerFenceTest, AStepRunAfterTheWriteStoresNothing) {
  lost_ = {0, 1};
  compute({1}, 1);
  const ConnectorMetadata late = step("a", 16, {1});
  change_weights(2);
  for (auto& rank : ranks_) rank->memory.fill(1, 2);  // computed by the new weights
  run(late);
  EXPECT_THAT(store_.values, IsEmpty());
  EXPECT_EQ(pins_.pinned(), 0);
}

// Rule BIND: an unannounced write. The rank tells, once the epoch is over nobody minds.
TEST_F(StoreSchedulerFenceTest, AnUnboundCurrentEpochAsksForAFence) {
  compute({1});
  const ConnectorMetadata metadata = step("a", 16, {1});
  execute(0, metadata);
  execute(1, metadata);
  worker(1).note_weight_write(0);
  ranks_[0]->run_all();
  ranks_[1]->run_all();
  EXPECT_TRUE(collect().must_fence);
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
  WorkerReport late;
  late.unbound_epoch = fence_.epoch() - 1;
  EXPECT_FALSE(update({late}).must_fence);
}

TEST_F(StoreSchedulerFenceTest, EventsOfTheOldEpochAreDropped) {
  compute({1});
  run(step("a", 16, {1}));
  fence_.reset(true);
  scheduler_->on_fence();
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
}

TEST_F(StoreSchedulerFenceTest, ASaveReportedAfterTheFenceIsNotTold) {
  compute({1});
  const ConnectorMetadata metadata = step("a", 16, {1});
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    execute(rank, metadata);
    ranks_[rank]->run_all();
  }
  fence_.reset(true);
  scheduler_->on_fence();
  collect();  // stored by all, in the epoch before
  EXPECT_EQ(pins_.pinned(), 0);
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
}

// --- reset_store ---

class ResetStoreTest : public StoreSchedulerFenceTest {
 protected:
  ResetStoreTest() {
    set_log_threshold(LogLevel::kInfo);
    set_log_sink([this](LogLevel level, std::string_view, std::string_view message) {
      if (message.starts_with("reset_store")) log_.emplace_back(level, message);
    });
  }
  ~ResetStoreTest() override {
    set_log_sink({});
    set_log_threshold(LogLevel::kWarning);
  }
  ResetAnswer reset() {
    fence_.reset(false);
    scheduler_->on_fence();
    return scheduler_->reset_store(soon());
  }
  std::vector<std::pair<LogLevel, std::string>> log_;
};

TEST_F(ResetStoreTest, FencesEveryRankAndLeavesTheStore) {
  preload(2);
  const ResetAnswer answer = reset();
  EXPECT_TRUE(answer.success);
  EXPECT_TRUE(answer.fenced);
  EXPECT_FALSE(answer.degraded);
  EXPECT_THAT(answer.silent_ranks, IsEmpty());
  for (auto& rank : ranks_) EXPECT_EQ(rank->worker.status().floor, fence_.epoch());
  EXPECT_THAT(store_.values, SizeIs(4));
  EXPECT_EQ(log_.at(0).first, LogLevel::kInfo);
}

// Contract W5: fenced all the same, and the rank that did not answer is named.
TEST_F(ResetStoreTest, ASilentRankMakesItDegraded) {
  lost_ = {1};
  const Time deadline = soon();
  const ResetAnswer answer = reset();
  EXPECT_TRUE(answer.success);
  EXPECT_TRUE(answer.degraded);
  EXPECT_THAT(answer.silent_ranks, ElementsAre(1));
  EXPECT_THAT(answer.error, HasSubstr("rank 1"));
  EXPECT_LE(clock_.now(), deadline);
  EXPECT_EQ(log_.at(0).first, LogLevel::kWarning);
  // Its floor comes with the next step.
  run(scheduler_->build_connector_meta({}));
  EXPECT_EQ(worker(1).status().floor, fence_.epoch());
}

TEST_F(ResetStoreTest, TellsHowManyJobsWereDropped) {
  preload(1);
  start_load("a", 1);
  compute({5});
  const ConnectorMetadata metadata = step("b", 16, {5});
  execute(0, metadata);
  execute(1, metadata);
  const ResetAnswer answer = reset();  // by the fence message that goes ahead of it
  EXPECT_EQ(answer.dropped_loads, 2u);
  EXPECT_EQ(answer.dropped_saves, 2u);
  EXPECT_EQ(scheduler_->reset_store(soon()).dropped_saves, 2u);  // the same reset again
  EXPECT_EQ(reset().dropped_saves, 0u);
}

TEST_F(ResetStoreTest, ThreeTimesIsAsGoodAsOnce) {
  compute({1});
  const ConnectorMetadata metadata = step("a", 16, {1});
  execute(0, metadata);
  execute(1, metadata);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(reset().success);
  collect();
  EXPECT_EQ(pins_.pinned(), 0);
  EXPECT_EQ(scheduler_->ignored_reports(), 0u);
}

TEST_F(ResetStoreTest, RemoveAllEmptiesTheStoreAfterDrainingEveryRank) {
  make_scheduler({.reset_mode = ResetMode::kRemoveAll});
  preload(2);
  run_on_message_ = true;
  const ResetAnswer answer = reset();
  EXPECT_TRUE(answer.success);
  EXPECT_EQ(answer.removed, 4u);
  EXPECT_THAT(store_.values, IsEmpty());
}

TEST_F(ResetStoreTest, RemoveAllFailsIfARankDidNotDrain) {
  make_scheduler({.reset_mode = ResetMode::kRemoveAll});
  preload(2);
  run_on_message_ = true;
  lost_ = {1};
  const ResetAnswer answer = reset();
  EXPECT_FALSE(answer.success);
  EXPECT_TRUE(answer.fenced);  // nothing stale can be read nevertheless
  EXPECT_THAT(answer.silent_ranks, ElementsAre(1));
  EXPECT_THAT(store_.values, SizeIs(4));
  EXPECT_EQ(log_.at(0).first, LogLevel::kWarning);
}

TEST_F(ResetStoreTest, RemoveAllFailsIfTheStoreDoes) {
  make_scheduler({.reset_mode = ResetMode::kRemoveAll});
  run_on_message_ = true;
  store_.remove_error = Error{Code::kUnavailable, "master is gone"};
  const ResetAnswer answer = reset();
  EXPECT_FALSE(answer.success);
  EXPECT_THAT(answer.error, HasSubstr("master is gone"));
}

TEST_F(ResetStoreTest, RemoveAllFailsIfSomethingIsLeft) {
  make_scheduler({.reset_mode = ResetMode::kRemoveAll});
  run_on_message_ = true;
  store_.left_behind = 1;
  EXPECT_FALSE(reset().success);
}

TEST_F(ResetStoreTest, AForeignServersAnswerIsPassedOnAsNotFenced) {
  LookupKeyClient::Options options;
  options.foreign = ForeignDialect::kVllm;
  LookupKeyClient foreign(transport_, clock_, options);
  StoreScheduler scheduler({}, fence_, foreign, pins_);
  for (const std::string_view reply : {RESP_OK, RESP_ERR}) {
    transport_.on_send = [&](std::size_t rank, const Frames& frames) {
      EXPECT_THAT(frames, ElementsAre(to_bytes(RESET_MSG)));
      transport_.deliver(rank, {to_bytes(reply)});
    };
    const ResetAnswer answer = scheduler.reset_store(soon());
    EXPECT_FALSE(answer.fenced);
    EXPECT_EQ(answer.success, reply == RESP_OK);
  }
}

}  // namespace
}  // namespace newmoon::testing
