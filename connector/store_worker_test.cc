// Saves, loads, lookups and bounds of one rank. The fences are in
// store_worker_fence_test.cc.
#include "connector/store_worker.h"

#include <gmock/gmock.h>

#include "base/testing/out_of_memory.h"
#include "connector/testing/worker_fixture.h"

namespace newmoon::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoreWorkerTest : public WorkerFixture {};

TEST_F(StoreWorkerTest, SavesAndLoadsBackEveryBlock) {
  for (const BlockId block : {1, 2, 3}) memory_.fill(block, static_cast<std::uint8_t>(block));
  worker_->wait_for_save(step_with(save_job(7, 1, {1, 2, 3})));
  EXPECT_THAT(worker_->get_finished().saves, IsEmpty());  // waits for nothing
  send_.run_all();
  const WorkerReport saved = worker_->get_finished();
  ASSERT_THAT(saved.saves, SizeIs(1));
  EXPECT_EQ(saved.saves[0].job_id, 7u);
  EXPECT_EQ(saved.saves[0].outcome, SaveOutcome::kStored);

  for (const BlockId block : {1, 2, 3}) memory_.fill(block, 0);
  const WorkerReport loaded = load(load_job(8, 1, {1, 2, 3}));
  ASSERT_THAT(loaded.loads, SizeIs(1));
  EXPECT_EQ(loaded.loads[0].load_id, 8u);
  EXPECT_THAT(loaded.loads[0].failed_blocks, IsEmpty());
  for (const BlockId block : {1, 2, 3}) EXPECT_EQ(memory_.content(block), block);
  EXPECT_THAT(worker_->get_finished().loads, IsEmpty());  // reported once
  EXPECT_EQ(worker_->stats().saved_blocks, 3u);
  EXPECT_EQ(worker_->stats().loaded_blocks, 3u);
}

TEST_F(StoreWorkerTest, PutsInBatches) {
  preload({1, 2, 3, 4, 5});
  EXPECT_THAT(store_.put_sizes, ElementsAre(2, 2, 1));
}

TEST_F(StoreWorkerTest, QueuedSavesShareAPut) {
  for (const BlockId block : {1, 2, 3}) {
    worker_->wait_for_save(step_with(save_job(static_cast<std::uint64_t>(block), 1, {block})));
  }
  send_.run_all();
  EXPECT_THAT(store_.put_sizes, ElementsAre(2, 1));
  EXPECT_THAT(worker_->get_finished().saves, SizeIs(3));
  EXPECT_EQ(worker_->stats().saved_blocks, 3u);
}

// A put has one deadline, which large blocks use up.
TEST_F(StoreWorkerTest, SavesOfLargeBlocksShareNoPut) {
  memory_ = VectorBlockMemory(3, 10 << 20);
  make_worker(default_options());
  for (const BlockId block : {1, 2}) {
    worker_->wait_for_save(step_with(save_job(static_cast<std::uint64_t>(block), 1, {block})));
  }
  send_.run_all();
  EXPECT_THAT(store_.put_sizes, ElementsAre(1, 1));
}

TEST_F(StoreWorkerTest, ABlockThatFailsFailsItsOwnSaveOnly) {
  store_.put_error = Error{Code::kUnavailable, "gone"};
  store_.put_error_block = test_hash(2);
  for (const BlockId block : {1, 2}) {
    worker_->wait_for_save(step_with(save_job(static_cast<std::uint64_t>(block), 1, {block})));
  }
  send_.run_all();
  EXPECT_THAT(store_.put_sizes, ElementsAre(2));
  const WorkerReport report = worker_->get_finished();
  EXPECT_EQ(report.saves.at(0).outcome, SaveOutcome::kStored);
  EXPECT_EQ(report.saves.at(1).outcome, SaveOutcome::kFailed);
  EXPECT_EQ(worker_->stats().saved_blocks, 1u);
}

TEST_F(StoreWorkerTest, AMissingBlockFailsTheRestOfItsLoad) {
  preload({1, 3, 4});
  const WorkerReport report = load(load_job(8, 1, {1, 2, 3, 4}));
  EXPECT_THAT(report.loads.at(0).failed_blocks, ElementsAre(2, 3, 4));
  EXPECT_EQ(worker_->stats().missing_blocks, 1u);
  EXPECT_EQ(worker_->stats().loaded_blocks, 1u);
}

TEST_F(StoreWorkerTest, ACorruptValueFailsItsBlock) {
  preload({1, 2});
  stored(2)->payload[3] ^= 1;
  EXPECT_THAT(load(load_job(8, 1, {1, 2})).loads.at(0).failed_blocks, ElementsAre(2));
  EXPECT_EQ(worker_->stats().corrupt_blocks, 1u);
}

// The first put of a key wins: what is bad must go before what is good can come.
TEST_F(StoreWorkerTest, ACorruptValueIsReplacedByTheNextSave) {
  preload({1, 2, 3});
  stored(2)->payload[3] ^= 1;
  load(load_job(8, 1, {1, 2, 3}));
  EXPECT_EQ(stored(2), nullptr);
  EXPECT_NE(stored(1), nullptr);
  EXPECT_NE(stored(3), nullptr);
  preload({2});
  EXPECT_THAT(load(load_job(9, 1, {1, 2, 3})).loads.at(0).failed_blocks, IsEmpty());
}

TEST_F(StoreWorkerTest, ATruncatedValueFailsItsBlock) {
  preload({1, 2});
  stored(1)->payload.pop_back();
  EXPECT_THAT(load(load_job(8, 1, {1, 2})).loads.at(0).failed_blocks, ElementsAre(1, 2));
  EXPECT_EQ(worker_->stats().corrupt_blocks, 1u);
  EXPECT_EQ(stored(1), nullptr);  // for the next save
}

// Rule SELF: the bytes are whole, but they are those of another scope's block.
TEST_F(StoreWorkerTest, AValueOfAnotherScopeFailsItsBlock) {
  preload({1});
  stored(1)->header.scope_id = test_scope(2).bytes;
  EXPECT_THAT(load(load_job(8, 1, {1})).loads.at(0).failed_blocks, ElementsAre(1));
}

TEST_F(StoreWorkerTest, AValueOfAnotherBlockFailsItsBlock) {
  preload({1, 2});
  std::swap(*stored(1), *stored(2));
  EXPECT_THAT(load(load_job(8, 1, {1, 2})).loads.at(0).failed_blocks, ElementsAre(1, 2));
}

TEST_F(StoreWorkerTest, ChecksumsStayOnUnlessReadsAreAtomic) {
  StoreWorker::Options options = default_options();
  options.checksum = false;
  make_worker(options);
  preload({1});
  EXPECT_EQ(stored(1)->header.flags, ValueHeader::kChecksummed);

  store_.atomic_reads = true;
  make_worker(options);
  preload({2});
  EXPECT_EQ(stored(2)->header.flags, 0);
  // What was stored with a checksum is still readable by who computes none.
  EXPECT_THAT(load(load_job(8, 1, {1, 2})).loads.at(0).failed_blocks, IsEmpty());
}

TEST_F(StoreWorkerTest, AChecksumThatTheMemoryKnowsIsNotComputedAgain) {
  memory_.known_checksum = 4711;
  preload({1});
  EXPECT_EQ(stored(1)->header.flags, ValueHeader::kChecksummed);
  EXPECT_EQ(stored(1)->header.checksum, 4711u);
}

TEST_F(StoreWorkerTest, TheStoreIsToldOfTheRoomInFrontOfABlock) {
  memory_.room = 4096;
  preload({1});
  EXPECT_EQ(store_.put_front_room, 4096u);
}

TEST_F(StoreWorkerTest, AFullStoreDropsTheSave) {
  store_.put_error = Error{Code::kBusy, "full"};
  worker_->wait_for_save(step_with(save_job(7, 1, {1, 2, 3})));
  send_.run_all();
  EXPECT_EQ(worker_->get_finished().saves.at(0).outcome, SaveOutcome::kDropped);
  EXPECT_EQ(worker_->stats().dropped_saves, 1u);
  EXPECT_THAT(store_.put_sizes, SizeIs(1));  // the other batches would fare no better
}

TEST_F(StoreWorkerTest, AFailingStoreFailsTheSaveAndIsCounted) {
  store_.put_error = Error{Code::kUnavailable, "gone"};
  worker_->wait_for_save(step_with(save_job(7, 1, {1})));
  send_.run_all();
  EXPECT_EQ(worker_->get_finished().saves.at(0).outcome, SaveOutcome::kFailed);
  EXPECT_EQ(worker_->stats().store_errors, 1u);
}

TEST_F(StoreWorkerTest, AFullSendQueueDropsAndReports) {
  for (std::uint64_t id = 1; id <= 5; ++id) {
    worker_->wait_for_save(step_with(save_job(id, 1, {static_cast<BlockId>(id)})));
  }
  const WorkerReport report = worker_->get_finished();
  ASSERT_THAT(report.saves, SizeIs(1));
  EXPECT_EQ(report.saves[0].job_id, 5u);
  EXPECT_EQ(report.saves[0].outcome, SaveOutcome::kDropped);
  EXPECT_EQ(worker_->stats().dropped_saves, 1u);
  send_.run_all();
  EXPECT_THAT(worker_->get_finished().saves, SizeIs(4));
}

TEST_F(StoreWorkerTest, AFullReceiveQueueFailsAndReports) {
  preload({1});
  for (std::uint64_t id = 1; id <= 5; ++id) worker_->start_load_kv(step_with(load_job(id, 1, {1})));
  const WorkerReport report = worker_->get_finished();
  ASSERT_THAT(report.loads, SizeIs(1));
  EXPECT_EQ(report.loads[0].load_id, 5u);
  EXPECT_THAT(report.loads[0].failed_blocks, ElementsAre(1));
  EXPECT_EQ(worker_->stats().dropped_loads, 1u);
}

class LoadTimeoutTest : public WorkerFixture {
 protected:
  static constexpr Duration kTimeout = std::chrono::seconds(10);

  // Two blocks a call of the store, each of which takes `call`.
  void make_slow(Duration call) {
    StoreWorker::Options options = default_options();
    options.load_timeout = kTimeout;
    make_worker(options);
    preload({1, 2, 3, 4, 5, 6});
    store_.before_get = [this, call] {
      ++calls_;
      clock_.advance(call);
    };
  }

  int calls_ = 0;
};

TEST_F(LoadTimeoutTest, ALoadOfManySlowCallsKeepsWhatCameInTime) {
  make_slow(std::chrono::seconds(6));
  const WorkerReport report = load(load_job(8, 1, {1, 2, 3, 4, 5, 6}));
  ASSERT_THAT(report.loads, SizeIs(1));
  EXPECT_THAT(report.loads[0].failed_blocks, ElementsAre(5, 6));
  EXPECT_EQ(calls_, 2);
  EXPECT_EQ(memory_.content(4), kOld);  // the call that was under way when time was over
  EXPECT_EQ(memory_.content(5), 0);
  EXPECT_EQ(worker_->stats().loaded_blocks, 4u);
  EXPECT_EQ(worker_->stats().dropped_loads, 1u);
}

TEST_F(LoadTimeoutTest, ALoadWhoseLastCallEndsLateIsWhole) {
  make_slow(std::chrono::seconds(11));
  EXPECT_THAT(load(load_job(8, 1, {1, 2})).loads.at(0).failed_blocks, IsEmpty());
  EXPECT_EQ(worker_->stats().dropped_loads, 0u);
}

TEST_F(LoadTimeoutTest, TheWaitBehindOtherLoadsCounts) {
  make_slow(std::chrono::seconds(6));
  worker_->start_load_kv(step_with(load_job(8, 1, {1, 2, 3, 4})));
  worker_->start_load_kv(step_with(load_job(9, 1, {5, 6})));
  clock_.advance(std::chrono::seconds(1));
  worker_->start_load_kv(step_with(load_job(10, 1, {5})));
  receive_.run_all();
  const WorkerReport report = worker_->get_finished();
  ASSERT_THAT(report.loads, SizeIs(3));
  EXPECT_THAT(report.loads[0].failed_blocks, IsEmpty());
  EXPECT_THAT(report.loads[1].failed_blocks, ElementsAre(5, 6));
  EXPECT_THAT(report.loads[2].failed_blocks, ElementsAre(5));
  EXPECT_EQ(calls_, 2);  // the store is not asked for what nobody waits for
  EXPECT_EQ(worker_->stats().dropped_loads, 2u);
  // The next one has its own time.
  EXPECT_THAT(load(load_job(11, 1, {5})).loads.at(0).failed_blocks, IsEmpty());
}

// Rule FLOOR comes first: what was fenced is refused with all that was loaded of it.
TEST_F(LoadTimeoutTest, AFencedLoadThatIsLateToo) {
  make_slow(std::chrono::seconds(11));
  store_.after_get = [this] { worker_->fence(2); };
  EXPECT_THAT(load(load_job(8, 1, {1, 2, 3})).loads.at(0).failed_blocks, ElementsAre(1, 2, 3));
  EXPECT_EQ(worker_->stats().dropped_loads, 0u);
}

TEST_F(StoreWorkerTest, WithoutALoadTimeoutALoadTakesItsTime) {
  preload({1, 2, 3});
  store_.before_get = [this] { clock_.advance(std::chrono::hours(1)); };
  EXPECT_THAT(load(load_job(8, 1, {1, 2, 3})).loads.at(0).failed_blocks, IsEmpty());
}

TEST_F(StoreWorkerTest, ReplicasDivideThePutsOfTheirShard) {
  std::size_t puts = 0;
  for (std::size_t stripe : {0u, 1u}) {
    StoreWorker::Options options = default_options();
    options.stripe_index = stripe;
    options.stripe_count = 2;
    make_worker(options);
    worker_->wait_for_save(step_with(save_job(7, 1, {1, 2, 3, 4, 5, 6, 7, 8})));
    send_.run_all();
    EXPECT_EQ(worker_->get_finished().saves.at(0).outcome, SaveOutcome::kStored);
    EXPECT_LT(worker_->stats().saved_blocks, 8u);
    puts += worker_->stats().saved_blocks;
  }
  EXPECT_EQ(puts, 8u);
  EXPECT_THAT(store_.values, SizeIs(8));
}

TEST_F(StoreWorkerTest, LookupCountsABlockOnlyIfEveryShardHasIt) {
  StoreWorker::Options options = default_options();
  options.all_shards = {Shard{.tp = 0}, Shard{.tp = 1}};
  make_worker(options);
  preload({1, 2});
  const LookupRequest request{test_scope(1), 1, 32, {test_hash(1), test_hash(2)}};
  EXPECT_EQ(worker_->lookup(request), 0u);

  options.shard = Shard{.tp = 1};
  make_worker(options);
  preload({1});
  EXPECT_EQ(worker_->lookup(request), 1u);
}

TEST_F(StoreWorkerTest, AForeignLookupLooksInItsOwnScope) {
  preload({1});
  LookupRequest request{std::nullopt, 0, 16, {test_hash(1)}};
  EXPECT_EQ(worker_->lookup(request), 0u);
  SaveJob job = save_job(7, 1, {1});
  job.scope = test_scope(99);
  worker_->wait_for_save(step_with(job));
  send_.run_all();
  EXPECT_EQ(worker_->lookup(request), 1u);
}

TEST_F(StoreWorkerTest, CloseReportsWhatIsQueuedAndWhatComesLater) {
  preload({1});
  worker_->wait_for_save(step_with(save_job(1, 1, {2})));
  worker_->start_load_kv(step_with(load_job(2, 1, {1})));
  worker_->close();
  worker_->wait_for_save(step_with(save_job(3, 1, {3})));
  worker_->start_load_kv(step_with(load_job(4, 1, {1})));
  const WorkerReport report = worker_->get_finished();
  ASSERT_THAT(report.saves, SizeIs(2));
  ASSERT_THAT(report.loads, SizeIs(2));
  EXPECT_EQ(report.saves[0].outcome, SaveOutcome::kDropped);
  EXPECT_EQ(report.saves[1].outcome, SaveOutcome::kDropped);
  EXPECT_THAT(report.loads[0].failed_blocks, ElementsAre(1));
  EXPECT_THAT(report.loads[1].failed_blocks, ElementsAre(1));
  bool drained = false;
  worker_->drain([&](const Result<FenceAck>& ack) { drained = ack.has_value(); });
  send_.run_all();
  receive_.run_all();
  EXPECT_TRUE(drained);
  EXPECT_FALSE(stored(2));
}

TEST_F(StoreWorkerTest, AJobWithoutMemoryFailsAndTheNextOneRuns) {
  preload({1});
  bool out_of_memory = true;
  const auto run_out = [&] {
    if (std::exchange(out_of_memory, false)) throw std::bad_alloc();
  };
  store_.before_put = run_out;
  worker_->wait_for_save(step_with(save_job(7, 1, {2, 4})));
  worker_->wait_for_save(step_with(save_job(8, 1, {3})));
  send_.run_all();
  const WorkerReport saved = worker_->get_finished();
  ASSERT_THAT(saved.saves, SizeIs(2));
  EXPECT_EQ(saved.saves[0].outcome, SaveOutcome::kFailed);
  EXPECT_EQ(saved.saves[1].outcome, SaveOutcome::kStored);

  out_of_memory = true;  // in a put that two share
  worker_->wait_for_save(step_with(save_job(11, 1, {5})));
  worker_->wait_for_save(step_with(save_job(12, 1, {6})));
  send_.run_all();
  for (const SaveReport& report : worker_->get_finished().saves) {
    EXPECT_EQ(report.outcome, SaveOutcome::kFailed);
  }

  out_of_memory = true;
  store_.before_get = run_out;
  EXPECT_THAT(load(load_job(9, 1, {1})).loads.at(0).failed_blocks, ElementsAre(1));
  EXPECT_THAT(load(load_job(10, 1, {1})).loads.at(0).failed_blocks, IsEmpty());
  EXPECT_EQ(worker_->stats().store_errors, 3u);
}

// Else the request would wait for ever.
TEST_F(StoreWorkerTest, ALoadIsReportedWithoutMemoryForIt) {
  const std::vector<BlockId> blocks(100, 1);
  for (const std::uint64_t id : {7, 8}) {
    worker_->start_load_kv(step_with(load_job(id, 1, blocks)));
    (void)worker_->get_finished();  // what is still to be reported keeps its room
  }
  {
    const NoMemoryFrom limit(256);
    receive_.run_one();
  }
  worker_->fence(2);
  receive_.run_all();
  const WorkerReport report = worker_->get_finished();
  ASSERT_THAT(report.loads, SizeIs(2));
  for (const LoadReport& load : report.loads) EXPECT_EQ(load.failed_blocks, blocks);
}

TEST_F(StoreWorkerTest, ReportsItsRankAndWeightWrites) {
  StoreWorker::Options options = default_options();
  options.rank = 3;
  make_worker(options);
  worker_->note_weight_write(0);
  worker_->note_weight_write(0);
  const WorkerReport report = worker_->get_finished();
  EXPECT_EQ(report.rank, 3u);
  EXPECT_EQ(report.weight_writes, 2u);
  EXPECT_EQ(worker_->status().weight_writes, 2u);
}

}  // namespace
}  // namespace newmoon::testing
