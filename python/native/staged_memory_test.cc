#include "python/native/staged_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace newmoon {
namespace {

// Two layers in one storage, as vLLM lays them out: 4 blocks of 6 bytes, then 4 of 2.
struct TwoLayers {
  Bytes storage = Bytes(32);
  StagedMemory memory{{{storage.data(), 6, 6}, {storage.data() + 24, 2, 2}}, 4, 2, true};

  TwoLayers() { std::iota(storage.begin(), storage.end(), std::uint8_t{0}); }
  Bytes bytes(BlockId id) {
    Bytes all;
    for (const Fragment& fragment : memory.fragments(id)) append(all, fragment);
    return all;
  }
};

TEST(StagedMemory, ABlockIsItsBytesInEveryLayer) {
  TwoLayers layers;
  EXPECT_EQ(layers.memory.block_bytes(), 8u);
  EXPECT_THAT(layers.bytes(2), ::testing::ElementsAre(12, 13, 14, 15, 16, 17, 28, 29));
}

TEST(StagedMemory, WhatIsStagedStaysWhenTheBlockIsWritten) {
  TwoLayers layers;
  const Bytes before = layers.bytes(2);
  const std::optional<BlockId> slot = layers.memory.stage(2);
  ASSERT_TRUE(slot);
  EXPECT_FALSE(layers.memory.is_block(*slot));
  std::fill(layers.storage.begin(), layers.storage.end(), 0xee);
  EXPECT_EQ(layers.bytes(*slot), before);
  EXPECT_NE(layers.bytes(2), before);
}

TEST(StagedMemory, TheChecksumOfWhatIsStagedIsKnown) {
  TwoLayers layers;
  const std::optional<BlockId> slot = layers.memory.stage(2);
  const Bytes staged = layers.bytes(*slot);
  std::fill(layers.storage.begin(), layers.storage.end(), 0xee);
  const ConstFragment whole(staged);
  EXPECT_EQ(layers.memory.checksum(*slot), checksum_of({&whole, 1}));
  EXPECT_EQ(layers.memory.checksum(2), std::nullopt);
  layers.memory.release(*slot);
  ASSERT_EQ(layers.memory.stage(3), slot);
  const Bytes anew = layers.bytes(*slot);
  const ConstFragment other(anew);
  EXPECT_EQ(layers.memory.checksum(*slot), checksum_of({&other, 1}));
}

TEST(StagedMemory, WithoutChecksumsNoneIsKnown) {
  Bytes storage(8);
  StagedMemory memory({{storage.data(), 2, 2}}, 4, 2, false);
  EXPECT_EQ(memory.checksum(*memory.stage(2)), std::nullopt);
}

TEST(StagedMemory, SlotsComeBack) {
  TwoLayers layers;
  const std::optional<BlockId> first = layers.memory.stage(1);
  const std::optional<BlockId> second = layers.memory.stage(2);
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  EXPECT_EQ(layers.memory.free_slots(), 0u);
  EXPECT_FALSE(layers.memory.stage(3));
  layers.memory.release(*first);
  EXPECT_EQ(layers.memory.stage(3), first);
  EXPECT_EQ(layers.bytes(*second), layers.bytes(2));
}

TEST(StagedMemory, AllSlotsLieInOnePieceThatMayOutliveIt) {
  std::optional<TwoLayers> layers(std::in_place);
  const auto [owner, slots] = layers->memory.slots();
  ASSERT_EQ(slots.size(), 16u);
  const std::optional<BlockId> slot = layers->memory.stage(2);
  const Fragment staged = layers->memory.fragments(*slot).at(0);
  EXPECT_GE(staged.data(), slots.data());
  EXPECT_LE(staged.data() + staged.size(), slots.data() + slots.size());
  const Bytes bytes(staged.begin(), staged.end());
  layers.reset();
  EXPECT_TRUE(std::ranges::search(slots, bytes));  // read after its end: asan
}

TEST(StagedMemory, SlotsHaveTheRoomInFrontThatTheyWereAskedFor) {
  Bytes storage(8);
  std::iota(storage.begin(), storage.end(), std::uint8_t{0});
  StagedMemory memory({{storage.data(), 2, 2}}, 4, 2, true, 100);
  EXPECT_EQ(memory.front_room(2), 0u) << "the engine's memory";
  const auto [owner, slots] = memory.slots();
  ASSERT_EQ(slots.size(), 2 * 102u);
  const BlockId first = *memory.stage(1);
  const BlockId second = *memory.stage(2);
  for (const BlockId slot : {second, first}) {
    EXPECT_EQ(memory.front_room(slot), 100u);
    const Fragment staged = memory.fragments(slot).at(0);
    ASSERT_GE(staged.data() - 100, slots.data());
    const Fragment room(staged.data() - 100, 100);
    EXPECT_THAT(room, ::testing::Each(0));
    std::ranges::fill(room, std::uint8_t{0xEE});
  }
  EXPECT_THAT(memory.fragments(first).at(0), ::testing::ElementsAre(2, 3));
  EXPECT_THAT(memory.fragments(second).at(0), ::testing::ElementsAre(4, 5));
}

TEST(StagedMemory, TheNullBlockIsNoBlock) {
  TwoLayers layers;
  EXPECT_FALSE(layers.memory.is_block(kNullBlock));
  EXPECT_TRUE(layers.memory.is_block(3));
  EXPECT_FALSE(layers.memory.is_block(4));
}

}  // namespace
}  // namespace newmoon
