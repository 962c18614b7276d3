#include "python/native/testing/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace newmoon {
namespace {

using newmoon::testing::kBlock;
using newmoon::testing::kRanks;
using newmoon::testing::Roles;
using newmoon::testing::test_hash;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(Roles, ABlockGoesOutAndComesBack) {
  preload("writer", 2, 7);
  EXPECT_EQ(match("reader", 2), 2 * kBlock);
  allocate("reader", {11, 12, 13}, 0, 2 * kBlock);
  EXPECT_TRUE(scheduler_->has_loads());
  execute(build());
  run_all();
  EXPECT_THAT(collect().cancelled, IsEmpty());
  EXPECT_THAT(finished_.loads, ElementsAre("reader"));
  EXPECT_THAT(finished_.failed_loads, IsEmpty());
  EXPECT_FALSE(scheduler_->has_loads());
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->content(11), 7);
    EXPECT_EQ(rank->content(12), 7);
  }
}

// A lookup would promise the same again, without end.
TEST_F(Roles, ALoadThatBroughtNothingIsNotAskedForAgain) {
  preload("writer", 2);
  EXPECT_EQ(match("reader", 2), 2 * kBlock);
  allocate("reader", {11, 12, 13}, 0, 2 * kBlock);
  const auto values = store_.values;
  store_.values.clear();
  execute(build());
  run_all();
  collect();
  EXPECT_THAT(finished_.failed_loads, ElementsAre("reader"));
  store_.values = values;
  EXPECT_EQ(match("reader", 2), 0u);
  EXPECT_EQ(match("another", 2), 2 * kBlock);
  scheduler_->fence_only();  // of other bytes
  preload("writer again", 2);
  EXPECT_EQ(match("reader", 2), 2 * kBlock);
}

// Rule PIN, by staging: the block is written again before its save runs.
TEST_F(Roles, WhatIsSavedIsWhatTheStepLeft) {
  match("a", 1);
  allocate("a", {5});
  step("a", {5}, 0, 7);
  for (auto& rank : ranks_) rank->compute(5, 9);
  run_all();
  ASSERT_EQ(store_.values.size(), kRanks);
  EXPECT_THAT(store_.values.begin()->second.payload, ::testing::Each(7));
}

TEST_F(Roles, ASaveWithoutARoomIsDroppedAndReported) {
  make_ranks(1);
  match("a", 2);
  allocate("a", {5, 6});
  step("a", {5, 6}, 0, 7);
  run_all();
  collect();
  EXPECT_THAT(store_.values, IsEmpty());
  EXPECT_EQ(ranks_[0]->role.unstaged_saves(), 1u);
  // The slot is free for the next one.
  match("b", 1);
  allocate("b", {7});
  step("b", {7}, 0, 7);
  run_all();
  EXPECT_EQ(store_.values.size(), kRanks);
}

TEST_F(Roles, SlotsComeBackWithTheirSaves) {
  make_ranks(1);
  for (const BlockId block : {5, 6, 7}) {
    const RequestId id = "r" + std::to_string(block);
    match(id, 1);
    allocate(id, {block});
    step(id, {block}, 0, 7);
    run_all();
  }
  EXPECT_EQ(ranks_[0]->role.unstaged_saves(), 0u);
}

// Also while no step comes that would take the reports.
TEST_F(Roles, SavesAreUnfinishedUntilTheStoreHasAnswered) {
  make_ranks(1);
  match("a", 1);
  allocate("a", {5});
  step("a", {5}, 0, 7);
  EXPECT_EQ(ranks_[0]->role.unfinished_saves(), 1u);
  run_all();
  EXPECT_EQ(ranks_[0]->role.unfinished_saves(), 0u);
}

TEST_F(Roles, AResetLeavesNothingToFind) {
  preload("writer", 2);
  const SchedulerRole::Reset answer = reset();
  EXPECT_TRUE(answer.answer.success);
  EXPECT_FALSE(answer.answer.degraded);
  EXPECT_EQ(answer.scope, ScopeOutcome::kNew);
  EXPECT_EQ(match("reader", 2), 0u);
}

TEST_F(Roles, TheScopeThatAFenceLeftIsPurgedOnTheRanks) {
  preload("writer", 2);
  scheduler_->fence_only();
  EXPECT_EQ(store_.values.size(), 2 * kRanks);
  execute(build());
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// Rule BIRTH: a request that runs across a fence publishes nothing, until it drops its blocks.
TEST_F(Roles, ARequestFromBeforeAFenceIsNotSaved) {
  match("a", 3);
  allocate("a", {5});
  step("a", {5}, 0, 1);
  run_all();
  reset();
  store_.values.clear();
  step("a", {5, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());

  EXPECT_EQ(match("a", 3), 0u);  // preempted: it holds no blocks now
  allocate("a", {8, 9, 10});
  step("a", {8, 9, 10}, 0, 2);
  run_all();
  EXPECT_EQ(store_.values.size(), 3 * kRanks);
}

// A block begun before the fence and filled after it is of both.
TEST_F(Roles, ABlockFilledAcrossAFenceIsNotSaved) {
  match("a", 1);
  allocate("a", {5});
  scheduler_->schedule("a", {}, false, 0, kBlock / 2);
  execute(build());
  reset();
  scheduler_->schedule("a", {}, false, kBlock / 2, kBlock / 2);
  execute(build());
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// vLLM finds a block of before the fence in its own cache; what attends to it is stale too.
TEST_F(Roles, WhatStandsBehindAnOldLocalPrefixIsNotSaved) {
  match("a", 1);
  allocate("a", {5});
  step("a", {5}, 0, 1);
  run_all();
  scheduler_->request_finished("a");
  scheduler_->fence_only();
  store_.values.clear();
  EXPECT_EQ(match("b", 2, kBlock), 0u);
  allocate("b", {5, 6}, kBlock);
  step("b", {5, 6}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// As under vLLM's MultiConnector. The block may have been ours in this very epoch before.
TEST_F(Roles, ABlockThatAnotherConnectorFilledInPartIsNotSaved) {
  preload("writer", 1);
  store_.values.clear();
  match("a", 1);
  allocate("a", {1});
  allocate("a", {1}, kBlock - 1);
  scheduler_->schedule("a", {{1}}, true, kBlock - 1, 1);
  execute(build());
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

TEST_F(Roles, WhatAnotherConnectorLoadedIsNotSaved) {
  preload("writer", 1);
  store_.values.clear();
  match("a", 3);
  allocate("a", {});
  step("a", {1, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// The same for a load that the request waits for, after which it is given its blocks again.
TEST_F(Roles, WhatAnotherConnectorLoadedInTheBackgroundIsNotSaved) {
  preload("writer", 1);
  store_.values.clear();
  match("a", 3);
  allocate("a", {1, 6, 7});
  allocate("a", {1, 6, 7}, kBlock);
  step("a", {1, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

TEST_F(Roles, WhatStandsBehindAnOwnLoadIsSaved) {
  preload("writer", 1);
  EXPECT_EQ(match("a", 3), kBlock);
  allocate("a", {5, 6, 7}, 0, kBlock);
  execute(build());
  run_all();
  collect();
  allocate("a", {5, 6, 7}, kBlock);
  step("a", {5, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_EQ(store_.values.size(), 3 * kRanks);
}

// Rule ONE-LOAD: the ranks say the load was good, and it is of other weights all the same.
TEST_F(Roles, ALoadThatAFenceOvertakesIsCancelled) {
  preload("writer", 2);
  EXPECT_EQ(match("reader", 2), 2 * kBlock);
  allocate("reader", {11, 12, 13}, 0, 2 * kBlock);
  execute(build());
  run_all();  // loaded, not yet reported
  EXPECT_TRUE(scheduler_->is_loading("reader"));
  reset();
  EXPECT_TRUE(scheduler_->is_loading("reader")) << "it holds its blocks still";
  EXPECT_THAT(collect().cancelled, ElementsAre("reader"));
  EXPECT_FALSE(scheduler_->is_loading("reader"));
  EXPECT_THAT(finished_.failed_loads, IsEmpty());
  EXPECT_FALSE(scheduler_->has_loads());
}

TEST_F(Roles, ALoadRefusedByTheFloorBringsNothing) {
  preload("writer", 2);
  match("reader", 2);
  allocate("reader", {11, 12, 13}, 0, 2 * kBlock);
  const StepMessage message = build();
  reset();
  execute(message);
  run_all();
  collect();
  EXPECT_THAT(finished_.failed_loads, ElementsAre("reader"));
  for (auto& rank : ranks_) EXPECT_EQ(rank->content(11), 0);
}

// What upstream's reset leaves queued, on all ranks but the first at least.
TEST_F(Roles, WhatIsStagedAtAResetIsStoredByNoRank) {
  make_ranks(2);
  match("a", 2);
  allocate("a", {5, 6});
  step("a", {5, 6}, 0, 7);
  reset();
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
  // Its slots are free for the next one.
  scheduler_->request_finished("a");
  match("b", 2);
  allocate("b", {7, 8});
  step("b", {7, 8}, 0, 7);
  run_all();
  EXPECT_EQ(store_.values.size(), 2 * kRanks);
}

TEST_F(Roles, AStepBuiltBeforeAResetAndRunAfterItStoresNothing) {
  match("a", 1);
  allocate("a", {5});
  scheduler_->schedule("a", {}, false, 0, kBlock);
  const StepMessage message = build();
  reset();
  execute(message);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// Save progress and ledgers are of a request's life, not of its name.
TEST_F(Roles, AnIdUsedAgainAfterAResetIsSavedFromItsFirstBlock) {
  preload("a", 2);
  reset();
  store_.values.clear();
  preload("a", 2);
}

TEST_F(Roles, AnIdUsedAgainIsNotTakenForItsPredecessorWithALoadUnderWay) {
  preload("writer", 2);
  EXPECT_EQ(match("a", 2), 2 * kBlock);
  allocate("a", {11, 12, 13}, 0, 2 * kBlock);
  execute(build());
  scheduler_->request_finished("a");  // aborted
  EXPECT_EQ(match("a", 2), 0u);       // rule ONE-LOAD
  allocate("a", {21, 22, 23});
  run_all();
  EXPECT_THAT(collect().cancelled, IsEmpty()) << "the blocks of the new one are its own";
  EXPECT_FALSE(scheduler_->has_loads());
}

TEST_F(Roles, WhatARequestDoesNotWantSavedIsNot) {
  match("a", 2);
  allocate("a", {5, 6});
  scheduler_->schedule("a", {}, false, 0, 2 * kBlock, false);
  execute(build());
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

TEST_F(Roles, APartOfALoadIsKept) {
  preload("writer", 3);
  EXPECT_EQ(match("reader", 3), 3 * kBlock);
  std::erase_if(store_.values,
                [](const auto& value) { return value.first.ends_with(test_hash(2).hex()); });
  allocate("reader", {11, 12, 13, 14}, 0, 3 * kBlock);
  execute(build());
  run_all();
  collect();
  EXPECT_THAT(finished_.loads, ElementsAre("reader"));
  EXPECT_THAT(finished_.failed_loads, IsEmpty());
  EXPECT_THAT(finished_.failed_blocks, ElementsAre(12, 13));
}

TEST_F(Roles, NoScopeOpensWhileARankIsSilent) {
  silent_ = true;
  EXPECT_EQ(match("a", 1), 0u);
  EXPECT_TRUE(scheduler_->fence().sealed());
  const std::size_t asked = transport_.sent.size();
  EXPECT_EQ(match("a", 1), 0u);
  EXPECT_EQ(transport_.sent.size(), asked) << "it is not asked with every call";
  silent_ = false;
  for (int i = 0; i < 2; ++i) {  // a rank that was silent is not awaited the first time
    clock_.advance(std::chrono::seconds(2));
    match("a", 1);
  }
  EXPECT_FALSE(scheduler_->fence().sealed());
}

// Rule BIND, end to end: nobody announced the write.
TEST_F(Roles, AnUnannouncedWeightWriteFences) {
  preload("writer", 1);
  const Epoch before = scheduler_->fence().epoch();
  for (auto& rank : ranks_) rank->worker.note_weight_write(0);
  store_.values.clear();
  match("a", 1);
  allocate("a", {5});
  step("a", {5}, 0, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
  EXPECT_TRUE(collect().must_fence);
  EXPECT_GT(scheduler_->fence().epoch(), before);

  match("b", 1);
  EXPECT_THAT(scheduler_->fence().bound_writes(), ElementsAre(1, 1));
  allocate("b", {6});
  step("b", {6}, 0, 2);
  run_all();
  EXPECT_FALSE(collect().must_fence);
  EXPECT_EQ(store_.values.size(), kRanks);
}

}  // namespace
}  // namespace newmoon
