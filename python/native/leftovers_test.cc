// What vLLM's own Mooncake connector keeps across a reset, by request: docs/parity.md, "What
// upstream's reset leaves behind". Ours keeps nothing that the next life of an id could meet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "python/native/testing/roles.h"

namespace newmoon {
namespace {

using newmoon::testing::kBlock;
using newmoon::testing::kRanks;
using newmoon::testing::Roles;
using newmoon::testing::test_hash;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Leftovers : public Roles {
 protected:
  // Request `id` is given `blocks` and computes all of them with weights `value`.
  void compute(const RequestId& id, std::vector<BlockId> blocks, std::uint8_t value) {
    ASSERT_EQ(match(id, static_cast<int>(blocks.size())), 0u);
    allocate(id, blocks);
    step(id, blocks, 0, value);
  }
  // `count` blocks are stored on every rank, and all of their bytes are `value`.
  void expect_stored(std::size_t count, std::uint8_t value) {
    EXPECT_THAT(store_.values, SizeIs(count * kRanks));
    for (const auto& [key, stored] : store_.values) EXPECT_THAT(stored.payload, Each(value)) << key;
  }
};

// `_unfinished_requests` holds a request with the blocks it was given first.
TEST_F(Leftovers, ARequestThatOutlivesAResetIsSavedFromTheBlocksItHasThen) {
  compute("a", {5, 6}, 1);
  reset();  // it is preempted: its blocks are somebody else's now
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
  for (auto& rank : ranks_) {
    rank->compute(5, 9);
    rank->compute(6, 9);
  }
  compute("a", {8, 9}, 2);
  run_all();
  expect_stored(2, 2);
}

// `stored_requests` counts the jobs of an id.
TEST_F(Leftovers, ASaveThatAResetDroppedEndsNoneOfTheNextRequestOfItsName) {
  compute("a", {5, 6}, 1);
  reset();
  scheduler_->request_finished("a");
  compute("a", {8, 9}, 2);
  collect();  // what was dropped is reported while the new one is queued
  for (auto& rank : ranks_) EXPECT_EQ(rank->role.unfinished_saves(), 1u);
  run_all();
  expect_stored(2, 2);
}

// `_saved_offset` is how far a rank has saved an id.
TEST_F(Leftovers, WhatWasSavedBeforeAResetIsSavedAgainByTheSameRequest) {
  compute("a", {5, 6}, 1);
  run_all();
  collect();
  expect_stored(2, 1);
  reset();
  store_.values.clear();
  compute("a", {8, 9}, 2);  // preempted, not ended
  run_all();
  expect_stored(2, 2);
}

// `_retry_token_ids` makes the next save tell of what an earlier one failed to store.
TEST_F(Leftovers, ASaveThatFailedBeforeAResetIsNotMadeUpForAfterIt) {
  store_.put_error = Error{Code::kInternal, "no"};
  store_.put_error_block = test_hash(1);
  compute("a", {5, 6}, 1);
  run_all();
  collect();
  store_.put_error.reset();
  reset();
  store_.values.clear();
  step("a", {5, 6, 7}, 2 * kBlock, 2);  // it goes on with what it has
  run_all();
  collect();
  EXPECT_THAT(store_.values, IsEmpty());
  scheduler_->request_finished("a");
  compute("b", {8}, 2);
  run_all();
  expect_stored(1, 2);
}

// `_skip_store_requests`: an id that met a full store is left out until a put goes through.
TEST_F(Leftovers, ARequestThatFoundTheStoreFullBeforeAResetIsSavedAfterIt) {
  store_.put_error = Error{Code::kBusy, "no room"};
  compute("a", {5, 6}, 1);
  run_all();
  collect();
  EXPECT_THAT(store_.values, IsEmpty());
  reset();
  store_.put_error.reset();
  compute("a", {8, 9}, 2);
  run_all();
  expect_stored(2, 2);
}

// SSD, a replica or a client's hot cache may hold on to what was removed.
TEST_F(Leftovers, WhatComesBackOfAnOldScopeIsNotFound) {
  compute("a", {5, 6}, 1);
  run_all();
  collect();
  const auto copies = store_.values;
  scheduler_->fence_only();
  execute(build());
  run_all();
  EXPECT_THAT(store_.values, IsEmpty()) << "purged";
  store_.values = copies;
  EXPECT_EQ(match("b", 2), 0u);
  store_.values.clear();
  compute("c", {8, 9}, 2);
  run_all();
  store_.values.insert(copies.begin(), copies.end());
  collect();
  EXPECT_EQ(match("d", 2), 2 * kBlock);
  allocate("d", {11, 12, 13}, 0, 2 * kBlock);
  execute(build());
  run_all();
  for (auto& rank : ranks_) EXPECT_EQ(rank->content(11), 2);
}

}  // namespace
}  // namespace newmoon
