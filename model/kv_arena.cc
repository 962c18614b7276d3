#include "model/kv_arena.h"

#include <sys/mman.h>

#include <cassert>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace newmoon {
namespace {

std::uint64_t sum(const std::vector<std::uint64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

std::vector<std::uint64_t> offsets(std::uint64_t start, const std::vector<std::uint64_t>& sizes) {
  std::vector<std::uint64_t> at{start};
  for (const std::uint64_t size : sizes) at.push_back(at.back() + size);
  return at;
}

// Byte ranges [offset, offset + size) of every block, as fragments.
class ArenaView final : public BlockMemory {
 public:
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };
  ArenaView(KvArena& arena, std::vector<Piece> pieces) : arena_(arena), pieces_(std::move(pieces)) {
    for (const Piece& piece : pieces_) block_bytes_ += piece.size;
  }

  std::vector<Fragment> fragments(BlockId block) override {
    std::vector<Fragment> fragments;
    fragments.reserve(pieces_.size());
    const Fragment all = arena_.block(block);
    for (const Piece& piece : pieces_) fragments.push_back(all.subspan(piece.offset, piece.size));
    return fragments;
  }
  std::uint64_t block_bytes() const override { return block_bytes_; }

 private:
  KvArena& arena_;
  const std::vector<Piece> pieces_;
  std::uint64_t block_bytes_ = 0;
};

}  // namespace

std::uint64_t KvLayout::block_bytes() const { return sum(k_layer_bytes) + sum(v_layer_bytes); }

LayerRange layers_of_rank(std::size_t layer_count, std::size_t rank, std::size_t rank_count) {
  return {.first = layer_count * rank / rank_count, .last = layer_count * (rank + 1) / rank_count};
}

Result<std::unique_ptr<KvArena>> KvArena::create(KvLayout layout, std::size_t block_count) {
  const std::uint64_t block_bytes = layout.block_bytes();
  if (block_bytes == 0 || layout.v_layer_bytes.size() != layout.layer_count()) {
    return fail(Code::kBadRequest, "KV layout: as many K as V layers are needed, not all empty");
  }
  if (block_count < 2) {
    return fail(Code::kBadRequest, "KV memory: at least 2 blocks are needed (one is null)");
  }
  if (block_count > std::numeric_limits<std::size_t>::max() / block_bytes) {
    return fail(Code::kBadRequest, "KV memory: " + std::to_string(block_count) +
                                       " blocks are more than can be addressed");
  }
  // Not reserved up front: a page counts once a block in it is written.
  void* const base = mmap(nullptr, block_bytes * block_count, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return fail(Code::kUnavailable, "KV memory: cannot map " +
                                        std::to_string(block_bytes * block_count) +
                                        " bytes; ask for fewer blocks");
  }
  return std::unique_ptr<KvArena>(
      new KvArena(std::move(layout), block_count, static_cast<std::uint8_t*>(base)));
}

KvArena::KvArena(KvLayout layout, std::size_t block_count, std::uint8_t* base)
    : layout_(std::move(layout)),
      block_count_(block_count),
      block_bytes_(layout_.block_bytes()),
      base_(base),
      k_offset_(offsets(0, layout_.k_layer_bytes)),
      v_offset_(offsets(k_offset_.back(), layout_.v_layer_bytes)),
      whole_(std::make_unique<ArenaView>(
          *this, std::vector<ArenaView::Piece>{{.offset = 0, .size = block_bytes_}})) {}

KvArena::~KvArena() { munmap(base_, bytes()); }

Fragment KvArena::block(BlockId block) {
  assert(block >= 0 && static_cast<std::size_t>(block) < block_count_);
  return {base_ + static_cast<std::uint64_t>(block) * block_bytes_, block_bytes_};
}
Fragment KvArena::k(BlockId id, std::size_t layer) {
  return block(id).subspan(k_offset_[layer], layout_.k_layer_bytes[layer]);
}
Fragment KvArena::v(BlockId id, std::size_t layer) {
  return block(id).subspan(v_offset_[layer], layout_.v_layer_bytes[layer]);
}

std::unique_ptr<BlockMemory> KvArena::rank_view(std::size_t rank, std::size_t rank_count) {
  assert(rank < rank_count && rank_count <= layout_.layer_count());
  const LayerRange layers = layers_of_rank(layout_.layer_count(), rank, rank_count);
  const auto piece = [&](const std::vector<std::uint64_t>& at) {
    return ArenaView::Piece{.offset = at[layers.first], .size = at[layers.last] - at[layers.first]};
  };
  return std::make_unique<ArenaView>(
      *this, std::vector<ArenaView::Piece>{piece(k_offset_), piece(v_offset_)});
}

void KvArena::discard() { madvise(base_, bytes(), MADV_DONTNEED); }

}  // namespace newmoon
