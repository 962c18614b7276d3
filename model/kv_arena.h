// KvArena: the host memory of all KV blocks of an engine, and the views of it that
// the model runner (whole blocks) and the ranks (their layers of a block) have.
//
// One mapped region, block-major. The bytes of a block lie together:
//
//   [K of layer 0] ... [K of layer L-1] [V of layer 0] ... [V of layer L-1]
//
// so that a whole block is one fragment and a rank's share, a run of layers, is
// two: its K and its V.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "hash/block.h"

namespace newmoon {

// Bytes of one block, by layer. Layers may differ in size; k and v are equally long.
struct KvLayout {
  std::vector<std::uint64_t> k_layer_bytes;
  std::vector<std::uint64_t> v_layer_bytes;

  std::size_t layer_count() const { return k_layer_bytes.size(); }
  std::uint64_t block_bytes() const;
};

// Layers [first, last) of rank r of `rank_count`: as even as can be, in layer order.
struct LayerRange {
  std::size_t first = 0;
  std::size_t last = 0;
};
LayerRange layers_of_rank(std::size_t layer_count, std::size_t rank, std::size_t rank_count);

// Immutable after create(); any thread may ask for views and addresses. Who may
// touch which block when is the business of the rules PIN and STEP.
class KvArena {
 public:
  // Block ids [0, block_count); block 0 is the null block and never read or written.
  // kBadRequest: no layer, or fewer than two blocks. kUnavailable: no such memory.
  static Result<std::unique_ptr<KvArena>> create(KvLayout layout, std::size_t block_count);
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  const KvLayout& layout() const { return layout_; }
  std::size_t block_count() const { return block_count_; }
  std::uint64_t block_bytes() const { return block_bytes_; }
  std::uint64_t bytes() const { return block_bytes_ * block_count_; }

  // REQUIRES: 0 <= block < block_count().
  Fragment block(BlockId block);
  Fragment k(BlockId block, std::size_t layer);
  Fragment v(BlockId block, std::size_t layer);

  // Whole blocks, one fragment each. Lives as long as the arena.
  BlockMemory& whole() { return *whole_; }
  // Rank r's share. Borrows the arena.
  // REQUIRES: rank < rank_count <= layout().layer_count().
  std::unique_ptr<BlockMemory> rank_view(std::size_t rank, std::size_t rank_count);

  // Gives the memory back to the system (sleep). The content of every block is lost;
  // blocks read as zeros until they are written again.
  void discard();

 private:
  KvArena(KvLayout layout, std::size_t block_count, std::uint8_t* base);

  const KvLayout layout_;
  const std::size_t block_count_;
  const std::uint64_t block_bytes_;
  std::uint8_t* const base_;
  std::vector<std::uint64_t> k_offset_;  // in a block, by layer; one more entry: the end
  std::vector<std::uint64_t> v_offset_;
  std::unique_ptr<BlockMemory> whole_;
};

}  // namespace newmoon
