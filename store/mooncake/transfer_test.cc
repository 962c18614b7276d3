#include "store/mooncake/transfer.h"

#include <gtest/gtest.h>

#include <numeric>

namespace newmoon {
namespace {

constexpr std::uint64_t kStaging = std::uint64_t{256} << 20;
constexpr std::uint64_t kValue = std::uint64_t{2} << 20;

Positions first(std::size_t count) {
  Positions positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

std::vector<std::size_t> sizes(std::size_t count, const ValueRoom& room,
                               std::uint64_t staging = kStaging) {
  const std::vector<ValueRoom> rooms(count, room);
  std::vector<std::size_t> sizes;
  Positions seen;
  for (const Positions& batch : cut_batches(first(count), rooms, staging)) {
    sizes.push_back(batch.size());
    seen.insert(seen.end(), batch.begin(), batch.end());
  }
  EXPECT_EQ(seen, first(count));  // each once, in order
  return sizes;
}

using Sizes = std::vector<std::size_t>;

TEST(CutBatches, CopiesOfOneBatchOverlapTheMoveOfAnother) {
  const ValueRoom copied{kValue, kValue, true};
  EXPECT_EQ(sizes(0, copied), Sizes());
  EXPECT_EQ(sizes(1, copied), Sizes({1}));
  EXPECT_EQ(sizes(2, copied), Sizes({1, 1}));
  EXPECT_EQ(sizes(8, copied), Sizes({2, 2, 2, 2}));
  const ValueRoom hashed{kValue, 4096, true};
  EXPECT_EQ(sizes(8, hashed), Sizes({2, 2, 2, 2}));
}

TEST(CutBatches, WhatMooncakeAloneReadsGoesInFewCalls) {
  const ValueRoom passed{kValue, 4096, false};
  EXPECT_EQ(sizes(8, passed), Sizes({8}));
  EXPECT_EQ(sizes(64, passed), Sizes({32, 32}));
  std::vector<ValueRoom> mixed(8, passed);
  mixed[3].is_worked_on = true;
  EXPECT_GT(cut_batches(first(8), mixed, kStaging).size(), 1u);
}

TEST(CutBatches, SeveralFitTheStagingMemory) {
  EXPECT_EQ(sizes(4, {kValue, kValue, true}, 4 * kValue), Sizes({1, 1, 1, 1}));
  EXPECT_EQ(sizes(8, {kValue, 4096, false}, 8 * 4096), Sizes({2, 2, 2, 2}));
  EXPECT_EQ(sizes(1000, {4096, 4096, true}), Sizes({512, 488}));
}

}  // namespace
}  // namespace newmoon
