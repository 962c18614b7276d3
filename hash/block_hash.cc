#include "hash/block_hash.h"

#include <cstdlib>

namespace newmoon {

BlockHash::BlockHash(ByteView bytes) : size_(static_cast<std::uint8_t>(bytes.size())) {
  if (bytes.size() > kMaxSize) std::abort();
  if (!bytes.empty()) std::memcpy(bytes_.data(), bytes.data(), bytes.size());
}

std::uint64_t BlockHash::event_int() const {
  return size_ < 8 ? 0 : load_be<std::uint64_t>(bytes_.data() + size_ - 8);
}

}  // namespace newmoon
