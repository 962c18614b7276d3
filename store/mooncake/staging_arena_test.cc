#include "store/mooncake/staging_arena.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/contain.h"
#include "base/testing/out_of_memory.h"

namespace newmoon {
namespace {

class StagingArenaTest : public ::testing::Test {
 protected:
  using Region = std::unique_ptr<StagingArena::Region>;

  Result<Region> take(std::uint64_t bytes, Duration patience = Duration::zero()) {
    return arena_->take(bytes, clock_.now() + patience);
  }

  SystemClock clock_;
  std::shared_ptr<StagingArena> arena_ = *StagingArena::make(1 << 20, clock_);
};

TEST_F(StagingArenaTest, RegionsDoNotOverlap) {
  std::vector<Region> regions;
  for (std::uint64_t bytes : {1, 64, 65, 1000, 100'000}) {
    regions.push_back(std::move(*take(bytes)));
    EXPECT_GE(regions.back()->bytes(), bytes);
    std::memset(regions.back()->data(), static_cast<int>(regions.size()), regions.back()->bytes());
  }
  for (std::size_t i = 0; i < regions.size(); ++i) {
    EXPECT_EQ(*regions[i]->data(), i + 1);
    EXPECT_EQ(regions[i]->data()[regions[i]->bytes() - 1], i + 1);
  }
}

TEST_F(StagingArenaTest, WhatComesBackJoinsItsNeighbours) {
  std::vector<Region> regions;
  while (Result<Region> region = take(100'000)) regions.push_back(std::move(*region));
  EXPECT_EQ(regions.size(), 10u);
  for (const std::size_t i : {1, 3, 0, 2, 9, 5, 8, 4, 7, 6}) regions[i].reset();
  EXPECT_TRUE(take(1 << 20));
}

TEST_F(StagingArenaTest, MoreThanThereIsIsRefusedAtOnce) {
  const auto region = take((1 << 20) + 1, std::chrono::hours(1));
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code, Code::kBusy);
}

TEST_F(StagingArenaTest, WithoutRoomTheDeadlineHolds) {
  const auto all = take(1 << 20);
  ASSERT_TRUE(all);
  const auto region = take(1, std::chrono::milliseconds(5));
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code, Code::kDeadline);
}

TEST_F(StagingArenaTest, WhoWaitsGetsWhatComesBackBeforeALaterCaller) {
  auto half = take(1 << 19);
  auto other_half = take(1 << 19);
  std::atomic<bool> got{false};
  std::thread first([&] {
    EXPECT_TRUE(take(1 << 20, std::chrono::seconds(30)));
    got = true;
  });
  // A small one passes by only until the large one waits.
  half->reset();
  while (take(64)) clock_.sleep_until(clock_.now() + std::chrono::milliseconds(1));
  EXPECT_FALSE(got);
  other_half->reset();
  first.join();
  EXPECT_TRUE(got);
}

TEST_F(StagingArenaTest, ARegionKeepsTheMemory) {
  Region region = std::move(*take(1000));
  arena_.reset();
  std::memset(region->data(), 1, 1000);
  EXPECT_EQ(region->data()[999], 1);
}

TEST_F(StagingArenaTest, WithoutMemoryNoRoomIsLostAndNobodyWaitsInVain) {
  bool has_failed = true;
  for (std::size_t count = 0; has_failed; ++count) {
    {
      const testing::NoMemoryAfter none(count);
      const auto first = contain([&] { return take(100'000); });
      const auto second = contain([&] { return take(200'000); });
      has_failed = none.has_failed();
    }
    EXPECT_TRUE(take(1 << 20)) << count;
  }
}

}  // namespace
}  // namespace newmoon
