#include "engine/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "connector/testing/jobs.h"

namespace newmoon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::test_hash;

class BlockPoolTest : public ::testing::Test {
 protected:
  // Four usable blocks, in epoch 1.
  BlockPool pool_{{.block_count = 5, .block_size = 4, .enable_kv_events = true}, 1};

  std::vector<BlockId> take(std::size_t count) { return pool_.allocate(count).value(); }
  // Computes and publishes block contents 0, 1, ... in the blocks.
  void publish(const std::vector<BlockId>& blocks, Epoch birth) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      pool_.set_birth(blocks[i], birth);
      pool_.publish(blocks[i], {.hash = test_hash(static_cast<int>(i)),
                                .parent = std::nullopt,
                                .tokens = {},
                                .lora_name = ""});
    }
  }
  std::size_t stored_events() {
    std::size_t count = 0;
    for (const KvEvent& event : pool_.take_events())
      count += std::holds_alternative<BlockStored>(event);
    return count;
  }
};

TEST_F(BlockPoolTest, AllocatesAllOrNothingAndNeverTheNullBlock) {
  EXPECT_EQ(pool_.allocate(5), std::nullopt);
  EXPECT_EQ(pool_.free_count(), 4u);
  EXPECT_THAT(take(4), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(pool_.allocate(1), std::nullopt);
  EXPECT_THAT(pool_.allocate(0).value(), IsEmpty());
}

TEST_F(BlockPoolTest, TailOfAPromptIsReusedFirst) {
  const std::vector<BlockId> blocks = take(4);
  pool_.release(blocks);
  EXPECT_THAT(take(4), ElementsAre(4, 3, 2, 1));
}

TEST_F(BlockPoolTest, FindsWhatIsFreeUntilItIsReused) {
  const std::vector<BlockId> blocks = take(2);
  publish(blocks, 1);
  pool_.release(blocks);
  ASSERT_EQ(pool_.find(test_hash(1)), blocks[1]);
  pool_.acquire(blocks[1]);
  EXPECT_EQ(pool_.free_count(), 3u);
  // Blocks never used go first, then the cached ones.
  EXPECT_THAT(take(3), ElementsAre(3, 4, blocks[0]));
  EXPECT_EQ(pool_.find(test_hash(0)), std::nullopt);
  EXPECT_EQ(pool_.find(test_hash(1)), blocks[1]);
}

TEST_F(BlockPoolTest, GroupIsPartOfTheKey) {
  publish(take(1), 1);
  EXPECT_EQ(pool_.find(test_hash(0), 1), std::nullopt);
  EXPECT_TRUE(pool_.find(test_hash(0), 0).has_value());
}

// Rule ROOT.
TEST_F(BlockPoolTest, ResetPutsOldEntriesOutOfReachAndTheyGoWithTheirBlocks) {
  const std::vector<BlockId> blocks = take(4);
  publish(blocks, 1);
  pool_.release(blocks);
  pool_.reset(2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pool_.find(test_hash(i)), std::nullopt);
  EXPECT_EQ(pool_.cached_count(), 4u);
  // The same content under the new epoch; the map never outgrows the blocks.
  for (Epoch epoch = 2; epoch < 10; ++epoch) {
    const std::vector<BlockId> again = take(4);
    publish(again, epoch);
    EXPECT_TRUE(pool_.find(test_hash(3)).has_value());
    EXPECT_EQ(pool_.cached_count(), 4u);
    pool_.release(again);
    pool_.reset(epoch + 1);
  }
}

// Rule BIRTH.
TEST_F(BlockPoolTest, OnlyKvOfTheCurrentEpochIsPublished) {
  const std::vector<BlockId> blocks = take(2);
  pool_.reset(2);
  publish({blocks[0]}, 1);
  EXPECT_EQ(pool_.find(test_hash(0)), std::nullopt);
  publish({blocks[1]}, 0);  // unknown
  EXPECT_EQ(pool_.find(test_hash(0)), std::nullopt);
  publish({blocks[1]}, 2);
  EXPECT_EQ(pool_.find(test_hash(0)), blocks[1]);
}

TEST_F(BlockPoolTest, AllocationForgetsBirth) {
  const std::vector<BlockId> blocks = take(1);
  pool_.set_birth(blocks[0], 1);
  EXPECT_EQ(pool_.birth(blocks[0]), 1u);
  pool_.release(blocks);
  take(4);
  EXPECT_EQ(pool_.birth(blocks[0]), 0u);
}

TEST_F(BlockPoolTest, SameContentIsCachedOnce) {
  const std::vector<BlockId> first = take(1);
  const std::vector<BlockId> second = take(1);
  publish(first, 1);
  publish(second, 1);
  EXPECT_EQ(pool_.find(test_hash(0)), first[0]);
  EXPECT_EQ(stored_events(), 1u);
}

// Rule PIN.
TEST_F(BlockPoolTest, PinnedBlockIsNotReused) {
  const std::vector<BlockId> blocks = take(1);
  pool_.pin(blocks[0]);
  pool_.release(blocks);
  EXPECT_EQ(pool_.pinned_count(), 1u);
  EXPECT_EQ(pool_.allocate(4), std::nullopt);
  pool_.reset(2);  // a reset drops jobs, never pins
  EXPECT_EQ(pool_.free_count(), 3u);
  pool_.unpin(blocks[0]);
  EXPECT_EQ(pool_.free_count(), 4u);
  EXPECT_EQ(pool_.pinned_count(), 0u);
}

TEST_F(BlockPoolTest, EventsSayWhatARouterMustKnow) {
  const std::vector<BlockId> blocks = take(4);
  publish(blocks, 1);
  pool_.release(blocks);
  take(1);  // recycles content 3
  const std::vector<KvEvent> events = pool_.take_events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(std::get<BlockStored>(events[0]).block_hash, test_hash(0));
  EXPECT_EQ(std::get<BlockStored>(events[0]).block_size, 4);
  EXPECT_EQ(std::get<BlockRemoved>(events[4]).block_hash, test_hash(3));
  EXPECT_THAT(pool_.take_events(), IsEmpty());
}

TEST_F(BlockPoolTest, ResetIsAnnouncedAtOnceAndSilencesWhatCameBefore) {
  const std::vector<BlockId> blocks = take(4);
  publish(blocks, 1);
  pool_.release(blocks);
  pool_.reset(2);
  pool_.reset(3);
  take(4);  // recycles entries that were cleared already: no news
  const std::vector<KvEvent> events = pool_.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<AllBlocksCleared>(events[0]).epoch, 3u);
}

TEST(BlockPoolOptionsTest, NoPrefixCachingNoEvents) {
  BlockPool pool({.block_count = 3, .enable_prefix_caching = false}, 1);
  const BlockId block = pool.allocate(1)->front();
  pool.set_birth(block, 1);
  pool.publish(block,
               {.hash = test_hash(0), .parent = std::nullopt, .tokens = {}, .lora_name = ""});
  EXPECT_EQ(pool.find(test_hash(0)), std::nullopt);
  pool.reset(2);
  EXPECT_THAT(pool.take_events(), IsEmpty());
}

}  // namespace
}  // namespace newmoon
