#include "store/slab_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace newmoon {
namespace {

std::vector<SlabPool::Slot> fill(SlabPool& pool, std::size_t bytes) {
  std::vector<SlabPool::Slot> slots;
  while (auto slot = pool.allocate(bytes)) {
    std::memset(slot->data, 0x5a, bytes);
    slots.push_back(*slot);
  }
  return slots;
}

TEST(SlabPool, UsesItsBudgetAndNeverMore) {
  for (const std::size_t bytes : {1, 64, 256, 3000, 65536, 368832}) {
    SlabPool pool(4 << 20);
    const std::size_t count = fill(pool, bytes).size();
    EXPECT_LE(pool.held_bytes(), pool.budget_bytes()) << bytes;
    EXPECT_GE(count * SlabPool::slot_bytes(bytes) * 10, pool.budget_bytes() * 9) << bytes;
  }
}

TEST(SlabPool, SlotsAreAlignedAndApart) {
  SlabPool pool(1 << 20);
  std::set<std::uint8_t*> starts;
  for (const SlabPool::Slot& slot : fill(pool, 1000)) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot.data) % 64, 0u);
    starts.insert(slot.data);
  }
  for (auto at = starts.begin(); std::next(at) != starts.end(); ++at) {
    EXPECT_GE(*std::next(at) - *at, 1000);
  }
}

TEST(SlabPool, RoundsUpByAtMostOneThirtySecond) {
  EXPECT_EQ(SlabPool::slot_bytes(1), 64u);
  EXPECT_EQ(SlabPool::slot_bytes(256), 256u);
  for (std::size_t bytes = 2048; bytes < 3'000'000; bytes += 997) {
    EXPECT_GE(SlabPool::slot_bytes(bytes), bytes);
    EXPECT_LE(SlabPool::slot_bytes(bytes) - bytes, bytes / 32);
  }
}

TEST(SlabPool, AFreedSlotIsUsedAgainWithoutMoreMemory) {
  SlabPool pool(8 << 20);
  const auto slot = pool.allocate(100'000);
  const std::uint64_t held = pool.held_bytes();
  pool.free({{*slot}});
  EXPECT_EQ(pool.allocate(100'000)->data, slot->data);
  EXPECT_EQ(pool.held_bytes(), held);
}

TEST(SlabPool, EmptySlabsServeAnotherSize) {
  SlabPool pool(1 << 20);
  for (const std::size_t bytes : {100, 70'000, 900, 1'000'000, 64}) {
    const std::vector<SlabPool::Slot> slots = fill(pool, bytes);
    ASSERT_FALSE(slots.empty()) << bytes;
    EXPECT_FALSE(pool.allocate(bytes)) << bytes;
    pool.free(slots);
  }
  EXPECT_LE(pool.held_bytes(), pool.budget_bytes());
}

TEST(SlabPool, KnowsWhatItCanNeverHold) {
  SlabPool pool(1 << 20);
  EXPECT_TRUE(pool.can_ever_hold(1 << 20));
  EXPECT_FALSE(pool.can_ever_hold((1 << 20) + 1));
  EXPECT_TRUE(pool.allocate(1 << 20));
}

}  // namespace
}  // namespace newmoon
