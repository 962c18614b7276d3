#include "model/kv_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace newmoon {
namespace {

using ::testing::Each;

KvLayout uneven() { return {.k_layer_bytes = {8, 16, 8}, .v_layer_bytes = {4, 32, 4}}; }

TEST(KvArenaTest, RanksShareABlockWithoutGapOrOverlap) {
  auto arena = KvArena::create(uneven(), 3).value();
  for (std::size_t rank_count = 1; rank_count <= 3; ++rank_count) {
    std::ranges::fill(arena->block(2), std::uint8_t{0});
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      const auto view = arena->rank_view(rank, rank_count);
      for (const Fragment fragment : view->fragments(2)) {
        for (std::uint8_t& byte : fragment) ++byte;
      }
    }
    EXPECT_THAT(arena->block(2), Each(1)) << rank_count << " ranks";
  }
}

TEST(KvArenaTest, BlockIsKOfAllLayersThenVOfAllLayers) {
  auto arena = KvArena::create(uneven(), 3).value();
  const std::uint8_t* const start = arena->block(1).data();
  EXPECT_EQ(arena->block_bytes(), 72u);
  EXPECT_EQ(arena->k(1, 2).data(), start + 24);
  EXPECT_EQ(arena->v(1, 0).data(), start + 32);
  EXPECT_EQ(arena->v(1, 2).data(), start + 68);
  EXPECT_EQ(arena->v(1, 2).size(), 4u);
  EXPECT_EQ(arena->block(2).data(), start + 72);
}

TEST(KvArenaTest, ViewsSeeTheSameBytes) {
  auto arena = KvArena::create(uneven(), 2).value();
  const auto second = arena->rank_view(1, 3);
  EXPECT_EQ(second->block_bytes(), 48u);
  second->fragments(1)[1][31] = 7;  // the last byte of V of layer 1
  EXPECT_EQ(arena->whole().fragments(1)[0][67], 7);
  EXPECT_EQ(arena->whole().block_bytes(), 72u);
}

TEST(KvArenaTest, DiscardLosesTheBytes) {
  auto arena = KvArena::create(uneven(), 2).value();
  arena->block(1)[5] = 9;
  arena->discard();
  EXPECT_EQ(arena->block(1)[5], 0);
}

TEST(KvArenaTest, RefusesWhatCannotBe) {
  EXPECT_EQ(KvArena::create({}, 8).error().code, Code::kBadRequest);
  EXPECT_EQ(KvArena::create(uneven(), 1).error().code, Code::kBadRequest);
  EXPECT_EQ(KvArena::create({.k_layer_bytes = {1}, .v_layer_bytes = {}}, 8).error().code,
            Code::kBadRequest);
}

}  // namespace
}  // namespace newmoon
