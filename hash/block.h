// A physical block of the engine's KV memory, as the connector sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hash/value.h"

namespace newmoon {

using BlockId = std::int32_t;
inline constexpr BlockId kNullBlock = 0;  // never holds KV

// Where one rank's bytes of each block lie. Threads may read different blocks at
// the same time; who may touch one block when is the business of the rules PIN and
// STEP, not of this interface.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  // This rank's bytes of a block, in payload order; always the same lengths.
  virtual std::vector<Fragment> fragments(BlockId block) = 0;
  virtual std::uint64_t block_bytes() const = 0;  // the sum of those lengths
  // Bytes in front of a block's first fragment for a store to write to (PutItem::front_room).
  virtual std::size_t front_room(BlockId block) const {
    (void)block;
    return 0;
  }
  // XXH3-64 of the block's bytes, if it is known without reading them.
  virtual std::optional<std::uint64_t> checksum(BlockId block) const {
    (void)block;
    return std::nullopt;
  }
};

}  // namespace newmoon
