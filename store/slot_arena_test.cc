#include "store/slot_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <iterator>
#include <new>
#include <set>
#include <vector>

#include "base/testing/out_of_memory.h"

namespace newmoon {
namespace {

constexpr std::uint64_t kBudget = 4 << 20;

class SlotArenaTest : public ::testing::Test {
 protected:
  // Until the pool is full.
  static std::vector<SlotArena::Slot> fill(SlotArena& arena, std::size_t bytes) {
    std::vector<SlotArena::Slot> slots;
    while (auto slot = arena.allocate(bytes)) {
      std::memset(slot->data, 0x5a, bytes);
      slots.push_back(*slot);
    }
    return slots;
  }
  static void free_all(const std::vector<SlotArena::Slot>& slots) {
    for (const SlotArena::Slot& slot : slots) SlotArena::free(slot);
  }

  PagePool pool_{kBudget};
  SlotArena arena_{pool_, 4096, 65536};
};

TEST_F(SlotArenaTest, UsesTheBudgetAndNeverMore) {
  for (const std::size_t bytes : {1, 64, 256, 3000, 65536, 368832}) {
    const std::vector<SlotArena::Slot> slots = fill(arena_, bytes);
    EXPECT_LE(pool_.held_bytes(), kBudget) << bytes;
    EXPECT_GE(slots.size() * SlotArena::slot_bytes(bytes) * 10, kBudget * 9) << bytes;
    free_all(slots);
  }
}

// Each limit makes another allocation of the arena's own fail.
TEST_F(SlotArenaTest, WithoutMemoryNothingIsLost) {
  for (const std::size_t limit : {16, 32, 64, 128, 256, 512}) {
    SlotArena arena(pool_, 4096, 4096);
    std::vector<SlotArena::Slot> slots;
    slots.reserve(100);
    for (std::size_t bytes = 1000; slots.size() < 100; bytes += 64) {
      try {
        const testing::NoMemoryFrom none(limit);
        if (auto slot = arena.allocate(bytes)) slots.push_back(*slot);
      } catch (const std::bad_alloc&) {
        slots.push_back(*arena.allocate(bytes));
      }
      std::memset(slots.back().data, 0x5a, bytes);
    }
    free_all(slots);
  }
  const auto all = pool_.allocate(kBudget);
  ASSERT_TRUE(all);
  pool_.free({&*all, 1});
}

TEST_F(SlotArenaTest, SlotsAreAlignedAndApart) {
  std::set<std::uint8_t*> starts;
  for (const SlotArena::Slot& slot : fill(arena_, 1000)) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot.data) % 64, 0u);
    starts.insert(slot.data);
  }
  for (auto at = starts.begin(); std::next(at) != starts.end(); ++at) {
    EXPECT_GE(*std::next(at) - *at, 1000);
  }
}

TEST_F(SlotArenaTest, RoundsUpByAtMostOneThirtySecond) {
  EXPECT_EQ(SlotArena::slot_bytes(1), 64u);
  EXPECT_EQ(SlotArena::slot_bytes(256), 256u);
  for (std::size_t bytes = 2048; bytes < 3'000'000; bytes += 997) {
    EXPECT_GE(SlotArena::slot_bytes(bytes), bytes);
    EXPECT_LE(SlotArena::slot_bytes(bytes) - bytes, bytes / 32);
  }
}

TEST_F(SlotArenaTest, AFreedSlotIsUsedAgainWithoutMoreMemory) {
  const auto kept = arena_.allocate(1000);
  const auto slot = arena_.allocate(1000);
  const std::uint64_t held = pool_.held_bytes();
  SlotArena::free(*slot);
  EXPECT_EQ(arena_.allocate(1000)->data, slot->data);
  EXPECT_EQ(pool_.held_bytes(), held);
  SlotArena::free(*kept);
}

TEST_F(SlotArenaTest, EmptySlabsServeAnotherSizeAndAnotherArena) {
  SlotArena other(pool_, 65536, 65536);
  for (const std::size_t bytes : {100, 70'000, 900, 1'000'000, 64}) {
    for (SlotArena* arena : {&arena_, &other}) {
      const std::vector<SlotArena::Slot> slots = fill(*arena, bytes);
      ASSERT_GE(slots.size() * SlotArena::slot_bytes(bytes) * 4, kBudget * 3) << bytes;
      free_all(slots);
      EXPECT_EQ(arena->held_bytes(), 0u);
    }
  }
}

TEST_F(SlotArenaTest, ReleasesSlabsWithSlotsInUse) {
  fill(arena_, 200);
  EXPECT_FALSE(arena_.allocate(200));
  int slices = 0;
  while (arena_.release_slabs(10)) ++slices;
  EXPECT_GE(slices, 6);
  EXPECT_EQ(arena_.held_bytes(), 0u);
  EXPECT_TRUE(arena_.allocate(200));
}

TEST_F(SlotArenaTest, SlabsGrowWithTheArena) {
  (void)arena_.allocate(256);
  EXPECT_EQ(arena_.held_bytes(), 4096u);
  for (int i = 0; i < 10'000; ++i) (void)arena_.allocate(256);
  EXPECT_GE(arena_.held_bytes(), 10'001u * 256);
  EXPECT_LE(arena_.held_bytes(), 10'001u * 256 + 65536);
}

TEST_F(SlotArenaTest, KnowsWhatItCanNeverHold) {
  EXPECT_TRUE(arena_.can_ever_hold(kBudget));
  EXPECT_FALSE(arena_.can_ever_hold(kBudget + 1));
  EXPECT_TRUE(arena_.allocate(kBudget));
}

TEST_F(SlotArenaTest, KnowsTheOwnerOfASlot) {
  SlotArena other(pool_, 4096, 4096);
  EXPECT_EQ(SlotArena::owner(*arena_.allocate(10)), &arena_);
  EXPECT_EQ(SlotArena::owner(*other.allocate(10)), &other);
}

TEST_F(SlotArenaTest, ToFreeTakesNoMemory) {
  SlotArena other(pool_, 4096, 4096);
  std::vector<SlotArena::Slot> slots = fill(arena_, 50'000);
  free_all(slots);
  slots = fill(arena_, 200'000);
  (void)other.allocate(1000);
  const testing::NoMemoryFrom none(0);
  free_all(slots);
  EXPECT_TRUE(other.release_slabs(10));
}

}  // namespace
}  // namespace newmoon
