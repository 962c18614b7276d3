// A rank across fences and weight writes: each test places the event where upstream,
// or a build without the rule named, would publish or deliver KV of other weights.
#include <gmock/gmock.h>

#include <future>
#include <optional>
#include <set>
#include <thread>

#include "connector/testing/worker_fixture.h"
#include "store/circuit_breaker_store.h"

namespace newmoon::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoreWorkerFenceTest : public WorkerFixture {
 protected:
  std::vector<Result<ResetAck>> acks_;

  void reset(const ResetRequest& request) {
    worker_->reset(request, [this](Result<ResetAck> ack) { acks_.push_back(std::move(ack)); });
  }
};

// Late put: queued before the fence, executed after it (rule FLOOR).
TEST_F(StoreWorkerFenceTest, FenceDropsQueuedJobsAndReportsThemOnce) {
  preload({1});
  worker_->wait_for_save(step_with(save_job(7, 1, {2})));
  worker_->start_load_kv(step_with(load_job(8, 1, {1})));
  const FenceAck ack = worker_->fence(2);
  EXPECT_EQ(ack.floor, 2u);
  EXPECT_EQ(ack.dropped_saves, 1u);
  EXPECT_EQ(ack.dropped_loads, 1u);
  send_.run_all();
  receive_.run_all();
  const WorkerReport report = worker_->get_finished();
  ASSERT_THAT(report.saves, SizeIs(1));
  EXPECT_EQ(report.saves[0].outcome, SaveOutcome::kDropped);
  ASSERT_THAT(report.loads, SizeIs(1));
  EXPECT_THAT(report.loads[0].failed_blocks, ElementsAre(1));
  EXPECT_FALSE(report.unbound_epoch);  // the scheduler fenced itself
  EXPECT_FALSE(stored(2));
  EXPECT_EQ(worker_->stats().refused_jobs, 2u);
}

TEST_F(StoreWorkerFenceTest, FenceLeavesJobsOfTheNewEpoch) {
  worker_->wait_for_save(step_with(save_job(7, 2, {1})));
  EXPECT_EQ(worker_->fence(2).dropped_saves, 0u);
  send_.run_all();
  EXPECT_TRUE(stored(1));
}

// A step scheduled before the fence that reaches the rank after it.
TEST_F(StoreWorkerFenceTest, JobsBelowTheFloorAreRefusedAtEnqueue) {
  preload({1});
  worker_->fence(2);
  worker_->wait_for_save(step_with(save_job(7, 1, {2})));
  worker_->start_load_kv(step_with(load_job(8, 1, {1})));
  EXPECT_EQ(send_.size() + receive_.size(), 0u);
  const WorkerReport report = worker_->get_finished();
  EXPECT_EQ(report.saves.at(0).outcome, SaveOutcome::kDropped);
  EXPECT_THAT(report.loads.at(0).failed_blocks, ElementsAre(1));
}

// Rank 1 is not fenced: the message was lost. The next step's metadata tells it.
TEST_F(StoreWorkerFenceTest, MetadataRaisesTheFloorOfARankThatMissedTheFence) {
  worker_->wait_for_save(step_with(save_job(7, 1, {2})));
  worker_->start_load_kv(ConnectorMetadata{2, {}, {}});
  send_.run_all();
  EXPECT_FALSE(stored(2));
  EXPECT_EQ(worker_->get_finished().saves.at(0).outcome, SaveOutcome::kDropped);
}

// A put that is running when the fence comes ends under its own scope with the bytes
// its key promises (the block is pinned); what it had not begun is not put.
TEST_F(StoreWorkerFenceTest, APutAcrossAFenceStopsAtTheNextBatch) {
  for (const BlockId block : {1, 2, 3}) memory_.fill(block, kOld);
  store_.before_put = [this] { worker_->fence(2); };
  worker_->wait_for_save(step_with(save_job(7, 1, {1, 2, 3})));
  send_.run_all();
  EXPECT_EQ(stored(1)->payload, Bytes(memory_.block_bytes(), kOld));
  EXPECT_TRUE(stored(2));
  EXPECT_FALSE(stored(3));
  const WorkerReport report = worker_->get_finished();
  ASSERT_THAT(report.saves, SizeIs(1));
  EXPECT_EQ(report.saves[0].outcome, SaveOutcome::kDropped);
}

// Late load: the fence falls between the check before the get and its end.
TEST_F(StoreWorkerFenceTest, ALoadThatEndsUnderAMovedFloorFails) {
  preload({1, 2});
  store_.after_get = [this] { worker_->fence(2); };
  EXPECT_THAT(load(load_job(8, 1, {1, 2})).loads.at(0).failed_blocks, ElementsAre(1, 2));
  EXPECT_EQ(worker_->stats().loaded_blocks, 0u);
}

TEST_F(StoreWorkerFenceTest, ALoadAcrossAFenceStopsAtTheNextBatch) {
  preload({1, 2, 3});
  int gets = 0;
  store_.before_get = [&] { ++gets, worker_->fence(2); };
  EXPECT_THAT(load(load_job(8, 1, {1, 2, 3})).loads.at(0).failed_blocks, ElementsAre(1, 2, 3));
  EXPECT_EQ(gets, 1);
}

// Rule BIND: somebody wrote weights and the scheduler does not know.
TEST_F(StoreWorkerFenceTest, AWeightWriteMidQueueRefusesAndTells) {
  worker_->wait_for_save(step_with(save_job(7, 5, {1})));
  worker_->note_weight_write(0);
  send_.run_all();
  const WorkerReport report = worker_->get_finished();
  EXPECT_EQ(report.saves.at(0).outcome, SaveOutcome::kDropped);
  EXPECT_EQ(report.unbound_epoch, 5u);
  EXPECT_FALSE(stored(1));
  EXPECT_FALSE(worker_->get_finished().unbound_epoch);  // told once
}

// The step was scheduled under epoch 5 and ran after the write: its blocks hold KV of
// the new weights, its jobs name the old scope.
TEST_F(StoreWorkerFenceTest, AStepThatRunsAfterAWeightWritePublishesNothing) {
  preload({3}, kOld, 5);
  worker_->note_weight_write(0);
  memory_.fill(1, kNew);
  worker_->wait_for_save(step_with(save_job(7, 5, {1})));
  worker_->start_load_kv(step_with(load_job(8, 5, {3})));
  send_.run_all();
  receive_.run_all();
  EXPECT_FALSE(stored(1));
  const WorkerReport report = worker_->get_finished();
  EXPECT_THAT(report.loads.at(0).failed_blocks, ElementsAre(3));
  EXPECT_EQ(report.unbound_epoch, 5u);
  EXPECT_EQ(worker_->lookup({test_scope(1), 5, 16, {test_hash(3)}}).error().code, Code::kFenced);
}

// What `newmoon ctl fence` comes down to.
TEST_F(StoreWorkerFenceTest, AnOperatorsFenceRefusesWhatIsUnderWayAndTells) {
  worker_->wait_for_save(step_with(save_job(7, 5, {1})));
  const FenceAck ack = worker_->weights_written();
  EXPECT_EQ(ack.floor, 6u);
  EXPECT_EQ(ack.dropped_saves, 1u);
  EXPECT_EQ(ack.weight_writes, 1u);
  worker_->wait_for_save(step_with(save_job(8, 5, {2})));
  send_.run_all();
  EXPECT_FALSE(stored(1));
  EXPECT_FALSE(stored(2));
  const WorkerReport report = worker_->get_finished();
  ASSERT_EQ(report.saves.size(), 2u);
  for (const SaveReport& save : report.saves) EXPECT_EQ(save.outcome, SaveOutcome::kDropped);
  EXPECT_EQ(report.unbound_epoch, 5u);
  EXPECT_EQ(report.weight_writes, 1u);
}

TEST_F(StoreWorkerFenceTest, AWriteWhileSealedIsNoNews) {
  const ConnectorMetadata sealed{5, {}, {}};  // bound to nothing
  worker_->start_load_kv(sealed);
  worker_->note_weight_write(5);
  worker_->start_load_kv(sealed);
  EXPECT_FALSE(worker_->get_finished().unbound_epoch);
  worker_->start_load_kv({6, {}, {}, {1}});  // adopted
  EXPECT_FALSE(worker_->get_finished().unbound_epoch);
}

TEST_F(StoreWorkerFenceTest, AWeightWriteDuringAGetFailsTheLoad) {
  preload({1}, kOld, 5);
  store_.after_get = [this] { worker_->note_weight_write(0); };
  const WorkerReport report = load(load_job(8, 5, {1}));
  EXPECT_THAT(report.loads.at(0).failed_blocks, ElementsAre(1));
  EXPECT_EQ(report.unbound_epoch, 5u);
}

TEST_F(StoreWorkerFenceTest, AfterTheFenceThatFollowsAWriteJobsGoOn) {
  worker_->start_load_kv(ConnectorMetadata{5, {}, {}});
  worker_->note_weight_write(0);
  worker_->fence(6);
  worker_->wait_for_save(step_with(save_job(7, 6, {1})));
  send_.run_all();
  EXPECT_EQ(worker_->get_finished().saves.at(0).outcome, SaveOutcome::kStored);
}

// --- resets ---

// Nobody announced the write, and it came before the rank heard of the epoch whose
// scope stands for the weights before it: rule BIND, with or without a job.
TEST_F(StoreWorkerFenceTest, AWriteBeforeAnEpochsFirstUseRefusesItAndTells) {
  worker_->note_weight_write(0);
  ConnectorMetadata metadata = step_with(save_job(7, 2, {1}));
  metadata.weight_writes = {0};
  worker_->start_load_kv(metadata);
  EXPECT_EQ(worker_->get_finished().unbound_epoch, 2u);
  worker_->wait_for_save(metadata);
  send_.run_all();
  EXPECT_FALSE(stored(1));
  const WorkerReport report = worker_->get_finished();
  EXPECT_EQ(report.saves.at(0).outcome, SaveOutcome::kDropped);
  EXPECT_EQ(report.unbound_epoch, 2u);
  // The scheduler has fenced and counted anew.
  metadata = step_with(save_job(8, 3, {1}));
  metadata.weight_writes = {1};
  worker_->wait_for_save(metadata);
  send_.run_all();
  EXPECT_TRUE(stored(1));
  EXPECT_FALSE(worker_->get_finished().unbound_epoch);
}

TEST_F(StoreWorkerFenceTest, ResetInFenceModeAnswersAtOnceAndKeepsTheStore) {
  preload({1});
  worker_->wait_for_save(step_with(save_job(7, 1, {2})));
  reset({.epoch = 2, .mode = ResetMode::kFence});
  ASSERT_THAT(acks_, SizeIs(1));
  EXPECT_EQ(acks_[0]->fence.floor, 2u);
  EXPECT_EQ(acks_[0]->fence.dropped_saves, 1u);
  EXPECT_TRUE(stored(1));
}

TEST_F(StoreWorkerFenceTest, ThreeResetsDropEachJobOnce) {
  worker_->wait_for_save(step_with(save_job(7, 1, {2})));
  for (const Epoch epoch : {2, 3, 4}) reset({.epoch = epoch, .mode = ResetMode::kFence});
  ASSERT_THAT(acks_, SizeIs(3));
  EXPECT_EQ(acks_[0]->fence.dropped_saves, 1u);
  EXPECT_EQ(acks_[1]->fence.dropped_saves, 0u);
  EXPECT_EQ(acks_[2]->fence.floor, 4u);
  EXPECT_THAT(worker_->get_finished().saves, SizeIs(1));
}

// Upstream acks while a put of rank 1 is still under way, and the value appears later.
TEST_F(StoreWorkerFenceTest, RemoveAllAnswersOnlyWhenRunningJobsHaveEnded) {
  preload({1});
  worker_->start_load_kv(step_with(load_job(8, 2, {1})));  // of the new epoch: not dropped
  store_.before_put = [this] {
    reset({.epoch = 2, .mode = ResetMode::kRemoveAll, .remove = true});
    receive_.run_all();
    EXPECT_THAT(acks_, IsEmpty());
  };
  worker_->wait_for_save(step_with(save_job(7, 2, {2})));
  send_.run_all();
  ASSERT_THAT(acks_, SizeIs(1));
  EXPECT_EQ(acks_[0]->removed, 2u);
  EXPECT_EQ(acks_[0]->remaining, 0u);
  EXPECT_THAT(store_.values, IsEmpty());
  EXPECT_THAT(worker_->get_finished().loads.at(0).failed_blocks, IsEmpty());
}

TEST_F(StoreWorkerFenceTest, RemoveAllWithoutRemoveOnlyDrains) {
  preload({1});
  reset({.epoch = 2, .mode = ResetMode::kRemoveAll, .remove = false});
  send_.run_all();
  EXPECT_THAT(acks_, IsEmpty());  // both queues count
  receive_.run_all();
  ASSERT_THAT(acks_, SizeIs(1));
  EXPECT_TRUE(stored(1));
}

// Upstream ignores the code and answers "ok".
TEST_F(StoreWorkerFenceTest, RemoveAllTellsTheStoresError) {
  store_.remove_error = Error{Code::kUnavailable, "master is gone"};
  reset({.epoch = 2, .mode = ResetMode::kRemoveAll, .remove = true});
  send_.run_all();
  receive_.run_all();
  ASSERT_THAT(acks_, SizeIs(1));
  EXPECT_EQ(acks_[0].error().code, Code::kUnavailable);
}

TEST_F(StoreWorkerFenceTest, RemoveAllTellsWhatItLeftBehind) {
  store_.left_behind = 3;
  reset({.epoch = 2, .mode = ResetMode::kRemoveAll, .remove = true});
  send_.run_all();
  receive_.run_all();
  ASSERT_THAT(acks_, SizeIs(1));
  EXPECT_THAT(acks_[0].error().message, ::testing::HasSubstr("3 blocks"));
}

// A foreign peer knows no epochs: all heard of so far is over, and our scheduler, which
// did not ask for it, is told.
TEST_F(StoreWorkerFenceTest, AForeignResetRefusesAllHeardOf) {
  worker_->wait_for_save(step_with(save_job(7, 5, {2})));
  reset({.epoch = 0, .mode = ResetMode::kFence});
  EXPECT_EQ(acks_.at(0)->fence.floor, 6u);
  EXPECT_EQ(acks_.at(0)->fence.dropped_saves, 1u);
  EXPECT_EQ(worker_->get_finished().unbound_epoch, 5u);
}

TEST_F(StoreWorkerFenceTest, DrainWaitsForBothQueuesAndDropsNothing) {
  preload({1});
  worker_->wait_for_save(step_with(save_job(7, 1, {2})));
  worker_->start_load_kv(step_with(load_job(8, 1, {1})));
  int drained = 0;
  worker_->drain([&](const Result<FenceAck>&) { ++drained; });
  send_.run_all();
  EXPECT_EQ(drained, 0);
  receive_.run_all();
  EXPECT_EQ(drained, 1);
  EXPECT_TRUE(stored(2));
  EXPECT_THAT(worker_->get_finished().loads.at(0).failed_blocks, IsEmpty());
}

// A store that is gone: the fence needs none, and whoever wants the bytes gone hears no.
TEST_F(StoreWorkerFenceTest, WithoutItsStoreAFenceIsTrueAndRemoveAllFailsAtOnce) {
  SystemClock clock;
  auto inner = std::make_unique<FakeStore>();
  FakeStore& backend = *inner;
  backend.put_error = Error{Code::kUnavailable, "gone"};
  CircuitBreakerStore store(std::move(inner), "the store", clock, {.failures_max = 1});
  StoreWorker worker(default_options(), store, memory_, clock_, send_, receive_);
  worker.wait_for_save(step_with(save_job(7, 1, {2})));
  send_.run_all();
  ASSERT_EQ(store.figures().state, CircuitBreaker::State::kOpen);

  std::vector<Result<ResetAck>> acks;
  const auto note = [&](Result<ResetAck> ack) { acks.push_back(std::move(ack)); };
  worker.reset({.epoch = 2, .mode = ResetMode::kFence}, note);
  worker.reset({.epoch = 3, .mode = ResetMode::kRemoveAll, .remove = true}, note);
  send_.run_all();
  receive_.run_all();
  ASSERT_THAT(acks, SizeIs(2));
  EXPECT_TRUE(acks[0]);
  ASSERT_FALSE(acks[1]);
  EXPECT_EQ(acks[1].error().code, Code::kUnavailable);
  EXPECT_EQ(worker.status().floor, 3u);
}

TEST_F(StoreWorkerFenceTest, DrainsAndResetsBehindAStuckTransferAreBounded) {
  StoreWorker::Options options = default_options();
  options.drains_max = 3;
  make_worker(options);
  worker_->wait_for_save(step_with(save_job(7, 1, {2})));
  int answered = 0;
  std::vector<Code> refused;
  const auto note = [&](const auto& ack) {
    ++answered;
    if (!ack) refused.push_back(ack.error().code);
  };
  for (int i = 0; i < 100; ++i) {
    worker_->drain([&](const Result<FenceAck>& ack) { note(ack); });
    worker_->reset({.epoch = 2, .mode = ResetMode::kRemoveAll, .remove = true},
                   [&](const Result<ResetAck>& ack) { note(ack); });
  }
  EXPECT_EQ(answered, 197);
  EXPECT_THAT(refused, SizeIs(197));
  EXPECT_THAT(refused, ::testing::Each(Code::kBusy));
  EXPECT_EQ(worker_->status().floor, 2u);  // rule FIRST: fenced all the same
  send_.run_all();
  receive_.run_all();
  EXPECT_EQ(answered, 200);
  EXPECT_THAT(refused, SizeIs(197));
}

// On real threads: whatever the fences hit, every job is reported exactly once.
TEST_F(StoreWorkerFenceTest, EveryJobIsReportedOnceUnderConcurrentFences) {
  constexpr std::uint64_t kSteps = 300;
  std::optional<ThreadExecutor> send(std::in_place, "save");
  std::optional<ThreadExecutor> receive(std::in_place, "load");
  StoreWorker::Options options = default_options();
  FakeStore loads_store;  // the fake is not thread-safe: loads find nothing in theirs
  StoreWorker worker(options, loads_store, memory_, clock_, *send, *receive);
  loads_store.put_error = Error{Code::kBusy, "full"};
  loads_store.before_put = [] { std::this_thread::yield(); };

  std::multiset<std::uint64_t> saves;
  std::multiset<std::uint64_t> loads;
  const auto collect = [&] {
    const WorkerReport report = worker.get_finished();
    for (const SaveReport& save : report.saves) saves.insert(save.job_id);
    for (const LoadReport& load : report.loads) loads.insert(load.load_id);
  };
  std::jthread fencer([&](const std::stop_token& stop) {
    for (Epoch epoch = 1; !stop.stop_requested(); ++epoch) {
      worker.fence(epoch);
      std::this_thread::yield();
    }
  });
  for (std::uint64_t id = 1; id <= kSteps; ++id) {
    const Epoch epoch = worker.status().floor;
    const ConnectorMetadata step{epoch, {load_job(id, epoch, {1})}, {save_job(id, epoch, {2})}};
    worker.start_load_kv(step);
    worker.wait_for_save(step);
    collect();
  }
  fencer.request_stop();
  fencer.join();
  worker.close();
  std::promise<void> drained;
  worker.drain([&](const Result<FenceAck>&) { drained.set_value(); });
  drained.get_future().wait();
  send.reset();  // the executors before the worker: their tasks end with a look at it
  receive.reset();
  collect();
  EXPECT_THAT(saves, SizeIs(kSteps));
  EXPECT_THAT(loads, SizeIs(kSteps));
  EXPECT_EQ(std::set(saves.begin(), saves.end()).size(), kSteps);
  EXPECT_EQ(std::set(loads.begin(), loads.end()).size(), kSteps);
}

}  // namespace
}  // namespace newmoon::testing
