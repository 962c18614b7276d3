// XXH3 by libxxhash, at the widest vectors the processor has. Internal to hash/.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t by value
#ifdef __x86_64__
#include <xxh_x86dispatch.h>  // IWYU pragma: keep; chooses SSE2, AVX2 or AVX512 at run time
#endif
#include <xxhash.h>

namespace newmoon {

// XXH3-64, seed 0, of bytes that come piece by piece. One thread.
class Xxh3 {
 public:
  Xxh3() { XXH3_64bits_reset(&state_); }
  void update(ByteView bytes) { XXH3_64bits_update(&state_, bytes.data(), bytes.size()); }
  std::uint64_t digest() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

// XXH3-128, seed 0, in canonical order: the high 64 bits first, big-endian.
inline std::array<std::uint8_t, 16> xxh3_128(ByteView message) {
  const XXH128_hash_t hash = XXH3_128bits(message.data(), message.size());
  std::array<std::uint8_t, 16> digest;
  store_be(digest.data(), hash.high64);
  store_be(digest.data() + 8, hash.low64);
  return digest;
}

}  // namespace newmoon
