#include "python/native/block_births.h"

#include <algorithm>

namespace newmoon {

Epoch BlockBirths::birth(BlockId block) const {
  const auto index = static_cast<std::size_t>(block);
  return block > kNullBlock && index < births_.size() ? births_[index] : 0;
}

void BlockBirths::set(BlockId block, Epoch birth) {
  if (block <= kNullBlock) return;
  const auto index = static_cast<std::size_t>(block);
  if (index >= births_.size()) births_.resize(index + 1, 0);
  births_[index] = birth;
}

Epoch BlockBirths::oldest(std::span<const BlockId> blocks) const {
  Epoch oldest = kNoHistory;
  for (const BlockId block : blocks) oldest = std::min(oldest, birth(block));
  return oldest;
}

}  // namespace newmoon
