// Lookups, loads, saves and events of the scheduler's end. Fences and resets are in
// store_scheduler_fence_test.cc.
#include "connector/store_scheduler.h"

#include <gmock/gmock.h>

#include "connector/testing/ranks_fixture.h"

namespace newmoon::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoreSchedulerTest : public RanksFixture {};

// --- lookups ---

TEST_F(StoreSchedulerTest, ALookupIsAskedOnceAndThenPolled) {
  preload(3);
  const std::size_t before = messages();
  const auto chain = hashes(4);
  EXPECT_FALSE(scheduler_->get_num_new_matched_tokens("a", 64, chain, 0));
  EXPECT_EQ(match("a", 64), 48u);
  EXPECT_EQ(match("a", 64), 48u);
  EXPECT_EQ(messages(), before + 1);
}

TEST_F(StoreSchedulerTest, MatchIsWhatLiesBeyondTheComputedTokens) {
  preload(3);
  EXPECT_EQ(match("a", 64, 16), 32u);
  EXPECT_EQ(match("a", 64, 48), 0u);
  EXPECT_EQ(match("a", 64, 64), 0u);
}

TEST_F(StoreSchedulerTest, TheLastTokenIsLeftToBeComputed) {
  preload(3);
  EXPECT_EQ(match("a", 48), 32u);
  EXPECT_EQ(match("b", 49), 48u);
  EXPECT_EQ(match("c", 16), 0u);
}

TEST_F(StoreSchedulerTest, OnlyWholeBlocksAreLoaded) {
  preload(3);
  EXPECT_EQ(match("a", 64, 20), 0u);
}

TEST_F(StoreSchedulerTest, ABlockCountsOnlyIfEveryRankHasIt) {
  preload(3);
  store_.values.erase(Key{*fence_.scope_id(), Shard{.tp = 1}, test_hash(2)}.to_string());
  EXPECT_EQ(match("a", 64), 16u);
}

TEST_F(StoreSchedulerTest, ShortHitsAreNotWorthALoad) {
  preload(2);
  make_scheduler({.min_load_tokens = 32});
  EXPECT_EQ(match("a", 64, 0), 32u);
  EXPECT_EQ(match("b", 64, 16), 0u);
  const std::size_t before = messages();
  EXPECT_EQ(match("c", 40, 16), 0u);  // 16 at most, whatever the store has
  EXPECT_EQ(messages(), before);
}

TEST_F(StoreSchedulerTest, NothingIsAskedWhileSealed) {
  preload(2);
  fence_.seal();
  scheduler_->on_fence();
  const std::size_t before = messages();
  EXPECT_EQ(match("a", 64), 0u);
  EXPECT_EQ(messages(), before);
}

TEST_F(StoreSchedulerTest, ADeadServerIsAMiss) {
  lost_ = {0};
  const auto chain = hashes(4);
  EXPECT_FALSE(scheduler_->get_num_new_matched_tokens("a", 64, chain, 0));
  clock_.advance(std::chrono::seconds(2));
  EXPECT_EQ(match("a", 64), 0u);
}

// Contract W7: the answer of a peer is not trusted.
TEST_F(StoreSchedulerTest, AHitBeyondTheRequestIsCut) {
  transport_.on_send = [&](std::size_t rank, const Frames& frames) {
    const Result<Request> request = decode_request(frames, {});
    transport_.deliver(rank, encode_reply(*request, std::uint32_t{4'000'000'007}));
  };
  EXPECT_EQ(match("a", 50), 48u);
  EXPECT_EQ(match("b", 48), 32u);  // the last token, also if the server does not cut
}

// --- loads ---

TEST_F(StoreSchedulerTest, ALoadGoesOutOnceAndEndsWhenEveryRankHasReported) {
  preload(2);
  ASSERT_EQ(match("a", 40), 32u);
  const std::uint64_t load_id = start_load("a", 2);
  const ConnectorMetadata metadata = scheduler_->build_connector_meta({});
  ASSERT_THAT(metadata.loads, SizeIs(1));
  EXPECT_EQ(metadata.loads[0].load_id, load_id);
  EXPECT_EQ(metadata.loads[0].scope, fence_.scope_id());
  EXPECT_EQ(metadata.loads[0].epoch, fence_.epoch());
  EXPECT_THAT(scheduler_->build_connector_meta({}).loads, IsEmpty());

  execute(0, metadata);
  execute(1, metadata);
  ranks_[0]->run_all();
  EXPECT_THAT(collect().loads, IsEmpty());
  EXPECT_TRUE(scheduler_->has_outstanding_load("a"));
  ranks_[1]->run_all();
  const ConnectorOutput output = collect();
  ASSERT_THAT(output.loads, SizeIs(1));
  EXPECT_EQ(output.loads[0].request_id, "a");
  EXPECT_EQ(output.loads[0].load_id, load_id);
  EXPECT_EQ(output.loads[0].epoch, fence_.epoch());
  EXPECT_FALSE(output.loads[0].cancelled);
  EXPECT_THAT(output.loads[0].failed_blocks, IsEmpty());
  EXPECT_FALSE(scheduler_->has_outstanding_load("a"));
  EXPECT_FALSE(scheduler_->has_pending_push_work());
  for (auto& rank : ranks_) EXPECT_EQ(rank->memory.content(12), 1);
}

TEST_F(StoreSchedulerTest, ABlockThatAnyRankFailedFailsWithAllBehindIt) {
  preload(3);
  start_load("a", 3);
  store_.values.erase(Key{*fence_.scope_id(), Shard{.tp = 1}, test_hash(2)}.to_string());
  const ConnectorOutput output = run(scheduler_->build_connector_meta({}));
  EXPECT_THAT(output.loads.at(0).failed_blocks, ElementsAre(12, 13));
}

// Asked again, the store would promise the same corrupt value, for ever.
TEST_F(StoreSchedulerTest, AfterAFailedLoadTheRequestComputesAndSaves) {
  preload(2);
  ASSERT_EQ(match("a", 40), 32u);
  start_load("a", 2);
  store_.values.at(Key{*fence_.scope_id(), Shard{.tp = 0}, test_hash(2)}.to_string()).payload[0] ^=
      1;
  EXPECT_THAT(run(scheduler_->build_connector_meta({})).loads.at(0).failed_blocks, ElementsAre(12));
  EXPECT_EQ(match("a", 40, 16), 0u);

  compute({11, 12});
  const ConnectorMetadata metadata = step("a", 40, {11, 12, 13});
  ASSERT_THAT(metadata.saves, SizeIs(1));
  ASSERT_THAT(metadata.saves[0].blocks, SizeIs(1));
  EXPECT_EQ(metadata.saves[0].blocks[0].block, 12);
  run(metadata);

  scheduler_->request_finished("a");
  EXPECT_EQ(match("a", 40), 32u);  // another request of that id starts afresh
}

TEST_F(StoreSchedulerTest, LateAndDuplicatedReportsAreIgnored) {
  preload(2);
  const std::uint64_t load_id = start_load("a", 2);
  scheduler_->build_connector_meta({});
  const WorkerReport good = report_of(0, LoadReport{load_id, {}});
  EXPECT_THAT(update({good, good}).loads, IsEmpty());  // twice rank 0 is not both ranks
  EXPECT_EQ(scheduler_->ignored_reports(), 1u);
  const ConnectorOutput output = update({report_of(1, LoadReport{load_id, {}})});
  EXPECT_THAT(output.loads, SizeIs(1));
  EXPECT_THAT(update({report_of(1, LoadReport{load_id, {11, 12}}),
                      report_of(1, SaveReport{77, SaveOutcome::kStored})})
                  .loads,
              IsEmpty());
  EXPECT_EQ(scheduler_->ignored_reports(), 3u);
}

TEST_F(StoreSchedulerTest, ReportsOfRanksThatDoNotExistAreIgnored) {
  preload(1);
  const std::uint64_t load_id = start_load("a", 1);
  EXPECT_THAT(update({report_of(7, LoadReport{load_id, {}})}).loads, IsEmpty());
  EXPECT_EQ(scheduler_->ignored_reports(), 1u);
}

// Rule ONE-LOAD (GEN in the model): reports of the first load must not end the second.
TEST_F(StoreSchedulerTest, AReportOfACancelledLoadDoesNotEndALaterOne) {
  preload(2);
  const std::uint64_t first = start_load("a", 2);
  scheduler_->build_connector_meta({});
  scheduler_->request_finished("a");
  EXPECT_EQ(match("a", 40), 0u);  // none while the first is outstanding
  EXPECT_FALSE(scheduler_->update_state_after_alloc("a", load_blocks(2), hashes(2), 0, 32));
  update({report_of(0, LoadReport{first, {}})});
  const ConnectorOutput output = update({report_of(1, LoadReport{first, {}})});
  ASSERT_THAT(output.loads, SizeIs(1));
  EXPECT_TRUE(output.loads[0].cancelled);
  EXPECT_THAT(output.loads[0].failed_blocks, ElementsAre(11, 12));  // all, though both ranks read

  const std::uint64_t second = start_load("a", 2);
  EXPECT_NE(second, first);
  EXPECT_THAT(
      update({report_of(0, LoadReport{first, {}}), report_of(1, LoadReport{first, {}})}).loads,
      IsEmpty());
  EXPECT_TRUE(scheduler_->has_outstanding_load("a"));
}

TEST_F(StoreSchedulerTest, ALoadThatNoRankHasEndsAtOnceWhenItsRequestDoes) {
  preload(1);
  start_load("a", 1);
  scheduler_->request_finished("a");
  EXPECT_TRUE(scheduler_->has_pending_push_work());  // the engine is to be told
  const ConnectorOutput output = update({});
  ASSERT_THAT(output.loads, SizeIs(1));
  EXPECT_TRUE(output.loads[0].cancelled);
  EXPECT_THAT(scheduler_->build_connector_meta({}).loads, IsEmpty());
  EXPECT_FALSE(scheduler_->has_pending_push_work());
}

// --- saves ---

TEST_F(StoreSchedulerTest, SavesEachFullBlockOnce) {
  compute({1, 2, 3});
  EXPECT_THAT(step("a", 15, {1}).saves, IsEmpty());
  const ConnectorMetadata first = step("a", 40, {1, 2, 3});
  ASSERT_THAT(first.saves, SizeIs(1));
  EXPECT_EQ(first.saves[0].scope, fence_.scope_id());
  EXPECT_EQ(first.saves[0].epoch, fence_.epoch());
  ASSERT_THAT(first.saves[0].blocks, SizeIs(2));
  EXPECT_EQ(first.saves[0].blocks[1].hash, test_hash(2));
  EXPECT_EQ(first.saves[0].blocks[1].block, 2);
  EXPECT_THAT(step("a", 47, {1, 2, 3}).saves, IsEmpty());
  const ConnectorMetadata second = step("a", 48, {1, 2, 3});
  ASSERT_THAT(second.saves, SizeIs(1));
  EXPECT_THAT(second.saves[0].blocks, SizeIs(1));
}

TEST_F(StoreSchedulerTest, AFullBlockWhoseHashIsNotKnownWaits) {
  compute({1, 2});
  const auto chain = hashes(1);
  const std::vector<BlockId> blocks{1, 2};
  const RequestProgress progress{"a", 32, chain, blocks};
  EXPECT_THAT(scheduler_->build_connector_meta({&progress, 1}).saves.at(0).blocks, SizeIs(1));
  EXPECT_THAT(step("a", 32, blocks).saves.at(0).blocks, SizeIs(1));
}

TEST_F(StoreSchedulerTest, FoundAndLoadedBlocksAreNotSavedAgain) {
  preload(2);
  pins_.births[21] = fence_.epoch();  // found in the local cache
  const std::vector<BlockId> blocks{21, 12, 13};
  ASSERT_TRUE(scheduler_->update_state_after_alloc("a", blocks, hashes(3), 16, 16));
  run(scheduler_->build_connector_meta({}));
  compute({12, 13});
  const ConnectorMetadata metadata = step("a", 48, blocks);
  ASSERT_THAT(metadata.saves, SizeIs(1));
  ASSERT_THAT(metadata.saves[0].blocks, SizeIs(1));
  EXPECT_EQ(metadata.saves[0].blocks[0].block, 13);
}

TEST_F(StoreSchedulerTest, ABlockBeingLoadedIsNotSaved) {
  preload(2);
  start_load("a", 2);
  compute({11, 12});
  const ConnectorMetadata metadata = step("a", 32, {11, 12});
  EXPECT_THAT(metadata.loads, SizeIs(1));
  EXPECT_THAT(metadata.saves, IsEmpty());
}

TEST_F(StoreSchedulerTest, SavingCanBeOff) {
  make_scheduler({.save = false});
  compute({1});
  EXPECT_THAT(step("a", 16, {1}).saves, IsEmpty());
  EXPECT_EQ(pins_.pinned(), 0);
}

// Rule PIN, the ABA of upstream: rank 1's save is still queued when rank 0 has reported
// and the request is gone. Were the block reused now, rank 1 would store another block's
// bytes under this hash.
TEST_F(StoreSchedulerTest, ABlockStaysPinnedUntilEveryRankHasSavedIt) {
  compute({1});
  const ConnectorMetadata metadata = step("a", 16, {1});
  EXPECT_EQ(pins_.pins[1], 1);
  execute(0, metadata);
  execute(1, metadata);
  ranks_[0]->run_all();
  scheduler_->request_finished("a");
  collect();
  EXPECT_EQ(pins_.pins[1], 1);
  EXPECT_TRUE(scheduler_->has_pending_push_work());
  ranks_[1]->run_all();
  collect();
  EXPECT_EQ(pins_.pins[1], 0);
  EXPECT_FALSE(scheduler_->has_pending_push_work());
}

TEST_F(StoreSchedulerTest, PinsGoWhateverTheOutcome) {
  compute({1});
  store_.put_error = Error{Code::kUnavailable, "gone"};
  run(step("a", 16, {1}));
  EXPECT_EQ(pins_.pinned(), 0);
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
}

TEST_F(StoreSchedulerTest, TwoRequestsMayPinOneBlock) {
  compute({1});
  const ConnectorMetadata a = step("a", 16, {1});
  const ConnectorMetadata b = step("b", 16, {1});
  EXPECT_EQ(pins_.pins[1], 2);
  run(a);
  EXPECT_EQ(pins_.pins[1], 1);
  run(b);
  EXPECT_EQ(pins_.pins[1], 0);
}

// --- events ---

TEST_F(StoreSchedulerTest, ABlockStoredByAllRanksIsTold) {
  compute({1, 2});
  const ConnectorMetadata metadata = step("a", 32, {1, 2});
  execute(0, metadata);
  execute(1, metadata);
  ranks_[0]->run_all();
  collect();
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
  ranks_[1]->run_all();
  collect();
  const std::vector<StoredEvent> events = scheduler_->take_events();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].hash, test_hash(2));
  EXPECT_EQ(events[1].epoch, fence_.epoch());
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
}

TEST_F(StoreSchedulerTest, ABlockThatOneRankDroppedIsNotTold) {
  compute({1});
  const std::uint64_t job = step("a", 16, {1}).saves.at(0).job_id;
  update({report_of(0, SaveReport{job, SaveOutcome::kStored}),
          report_of(1, SaveReport{job, SaveOutcome::kDropped})});
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
  EXPECT_EQ(pins_.pinned(), 0);
}

TEST_F(StoreSchedulerTest, EventsNobodyTakesAreBounded) {
  make_scheduler({.events_max = 2});
  compute({1, 2, 3});
  run(step("a", 48, {1, 2, 3}));
  const std::vector<StoredEvent> events = scheduler_->take_events();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].hash, test_hash(3));
}

// --- a dead rank ---

TEST_F(StoreSchedulerTest, ADeadRanksMissingReportsCountAsGiven) {
  preload(2);
  start_load("a", 2);
  compute({5});
  const ConnectorMetadata metadata = step("b", 16, {5});
  execute(0, metadata);
  ranks_[0]->run_all();
  collect();
  EXPECT_EQ(pins_.pins[5], 1);
  scheduler_->rank_died(1);
  scheduler_->rank_died(1);
  const ConnectorOutput output = update({});
  ASSERT_THAT(output.loads, SizeIs(1));
  EXPECT_THAT(output.loads[0].failed_blocks, ElementsAre(11, 12));
  EXPECT_EQ(pins_.pins[5], 0);
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
  EXPECT_FALSE(scheduler_->has_pending_push_work());
}

TEST_F(StoreSchedulerTest, WithADeadRankTheExternalTierIsOff) {
  preload(2);
  scheduler_->rank_died(0);
  EXPECT_EQ(match("a", 40), 0u);
  compute({1});
  EXPECT_THAT(step("a", 16, {1}).saves, IsEmpty());
  EXPECT_FALSE(scheduler_->update_state_after_alloc("a", load_blocks(2), hashes(2), 0, 32));
}

}  // namespace
}  // namespace newmoon::testing
