// StagedMemory: one rank's KV blocks as an engine in Python registered them, and staging
// slots in host memory into which blocks are copied before they are saved.
//
// Rule PIN asks that a save's source stays as it is until the bytes were copied to
// staging or the save has ended. vLLM's own pins would make its local reset fail, so a
// block is copied at the end of the step that filled it, on the forward thread, before
// any later step can write to it.
//
// The only place that touches the engine's memory: a device other than the CPU needs
// another stage() and another fragments() here, and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hash/block.h"

namespace newmoon {

// Threads: stage() and release() belong to the forward thread; fragments() may be called
// by any, for slots that are staged and blocks that are being loaded.
class StagedMemory final : public BlockMemory {
 public:
  // One tensor of a layer: block b is `bytes` bytes at base + b * stride.
  struct Region {
    std::uint8_t* base = nullptr;
    std::size_t stride = 0;
    std::size_t bytes = 0;
  };
  // The regions' memory must outlive this. Slots are allocated at once and touched when
  // they are used first. `checksum`: stage() computes that of each block while it copies,
  // which costs less than to read the slot once more when it is saved. `front_room`: of a slot.
  StagedMemory(std::vector<Region> regions, std::size_t block_count, std::size_t slot_count,
               bool checksum, std::size_t front_room = 0);

  std::uint64_t block_bytes() const override { return block_bytes_; }
  std::vector<Fragment> fragments(BlockId block) override;
  // Of a slot: of what was staged.
  std::optional<std::uint64_t> checksum(BlockId id) const override;
  std::size_t front_room(BlockId id) const override { return is_block(id) ? 0 : front_room_; }

  bool is_block(BlockId id) const;
  // Copies a block; the slot's id is no block's. nullopt: no slot is free.
  // REQUIRES: is_block(block).
  std::optional<BlockId> stage(BlockId block);
  void release(BlockId slot);
  std::size_t free_slots() const { return free_.size(); }
  // All slots, for a store that can save from where they are; they live as long as what this
  // shares.
  std::pair<std::shared_ptr<const void>, ByteView> slots() const;

 private:
  std::size_t slot_index(BlockId id) const { return static_cast<std::size_t>(id) - block_count_; }
  MutableByteView slot(BlockId id);

  const std::vector<Region> regions_;
  const std::size_t block_count_;
  const std::uint64_t block_bytes_;
  const std::size_t slot_count_;
  const std::size_t front_room_;
  const std::size_t slot_stride_;
  const std::shared_ptr<std::uint8_t[]> slots_;
  std::vector<std::uint64_t> checksums_;  // by slot; empty: not asked for
  std::vector<BlockId> free_;
};

}  // namespace newmoon
