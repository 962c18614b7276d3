// Block memory of a rank in a test: each block is two fragments, as K and V would be.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "hash/block.h"

namespace newmoon::testing {

class VectorBlockMemory final : public BlockMemory {
 public:
  static constexpr std::size_t kFragmentBytes = 24;

  explicit VectorBlockMemory(std::size_t blocks, std::size_t fragment_bytes = kFragmentBytes)
      : keys_(blocks, Bytes(fragment_bytes)), values_(blocks, Bytes(fragment_bytes)) {}

  std::vector<Fragment> fragments(BlockId block) override {
    const auto index = static_cast<std::size_t>(block);
    return {keys_.at(index), values_.at(index)};
  }
  std::uint64_t block_bytes() const override { return 2 * keys_.front().size(); }
  std::optional<std::uint64_t> checksum(BlockId) const override { return known_checksum; }
  std::size_t front_room(BlockId) const override { return room; }

  // As a forward pass with weights `value` would leave the block.
  void fill(BlockId block, std::uint8_t value) {
    for (const Fragment& fragment : fragments(block)) std::ranges::fill(fragment, value);
  }
  // `value` if the whole block holds it, else -1.
  int content(BlockId block) {
    const std::uint8_t value = keys_.at(static_cast<std::size_t>(block)).front();
    for (const Fragment& fragment : fragments(block)) {
      if (std::ranges::count(fragment, value) != std::ssize(fragment)) return -1;
    }
    return value;
  }

  std::optional<std::uint64_t> known_checksum;  // of every block, if set
  std::size_t room = 0;                         // told only: no memory is there

 private:
  std::vector<Bytes> keys_;
  std::vector<Bytes> values_;
};

}  // namespace newmoon::testing
