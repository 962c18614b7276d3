// BlockBirths: in which epoch the KV of an engine's blocks was computed (rule BIRTH), told
// from what the engine says of its requests. It pins nothing: saves are staged, see
// StagedMemory.
#pragma once

#include <limits>
#include <vector>

#include "connector/store_scheduler.h"

namespace newmoon {

// One thread.
class BlockBirths final : public BlockPins {
 public:
  // Of no blocks at all: min over nothing.
  static constexpr Epoch kNoHistory = std::numeric_limits<Epoch>::max();

  void pin(BlockId) override {}
  void unpin(BlockId) override {}
  Epoch birth(BlockId block) const override;  // 0: unknown
  void set(BlockId block, Epoch birth);

  // The oldest of these blocks.
  Epoch oldest(std::span<const BlockId> blocks) const;

 private:
  std::vector<Epoch> births_;  // by block id; grows with the ids seen
};

}  // namespace newmoon
