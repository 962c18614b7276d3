// The header in front of every stored value: a value names itself (rule SELF), so
// that bytes read back are checked before use. Byte table in docs/formats.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/bytes.h"
#include "base/result.h"
#include "hash/key.h"

namespace newmoon {

// A piece of a block's bytes in its owner's memory. A block is a list of them
// (for each layer and K or V, say); a value's payload is their concatenation.
using ConstFragment = std::span<const std::uint8_t>;
using Fragment = std::span<std::uint8_t>;

// Little-endian, no padding, written to the store as it stands in memory.
struct ValueHeader {
  static constexpr std::uint32_t kMagic = 0x4d4e4b56;  // bytes "VKNM"
  static constexpr std::uint16_t kVersion = 1;
  static constexpr std::uint16_t kChecksummed = 1;  // flag: checksum is set

  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t header_bytes = 128;
  std::uint64_t payload_bytes = 0;
  std::array<std::uint8_t, 16> layout_id{};  // of the KV layout, hash/value.h: layout_id()
  std::array<std::uint8_t, 16> scope_id{};
  std::array<std::uint8_t, 32> block_hash{};  // zero behind block_hash_bytes
  std::uint64_t shard = 0;                    // Shard::packed()
  std::uint64_t checksum = 0;                 // XXH3-64 of the payload, seed 0
  std::uint16_t flags = 0;
  std::uint8_t block_hash_bytes = 0;
  std::array<std::uint8_t, 29> reserved{};  // zero
};
static_assert(sizeof(ValueHeader) == 128 && std::is_trivially_copyable_v<ValueHeader> &&
              std::has_unique_object_representations_v<ValueHeader>);

using LayoutId = std::array<std::uint8_t, 16>;
// First 16 bytes of SHA-256 over the layout text of a Scope.
LayoutId layout_id(std::string_view layout);

// A header for `key` with no checksum yet.
ValueHeader make_header(const Key& key, const LayoutId& layout, std::uint64_t payload_bytes);

// Whether it is of a value of `key` with so many bytes, as far as it says.
bool names(const ValueHeader& header, const Key& key, std::uint64_t payload_bytes);

void set_checksum(ValueHeader& header, std::uint64_t checksum);

// Whether `seen` (as read from a store) is the value that `key` asked for and
// `payload_checksum` (of the bytes delivered) is the one it promises. kCorrupt
// with the first field that differs. `require_checksum`: one without is refused.
Status verify_header(const ValueHeader& seen, const Key& key, const LayoutId& layout,
                     std::uint64_t payload_bytes, std::uint64_t payload_checksum,
                     bool require_checksum);

std::uint64_t total_bytes(std::span<const ConstFragment> fragments);
std::uint64_t total_bytes(std::span<const Fragment> fragments);

// Copies and, with `checksum`, computes XXH3-64 on the way while the bytes are in
// the cache; returns it, else 0. REQUIRES: equal lengths. What gather() has written is
// in the cache, as somebody is about to read it; what scatter() has, is not.
std::uint64_t gather(std::span<const ConstFragment> from, MutableByteView to, bool checksum);
std::uint64_t scatter(ByteView from, std::span<const Fragment> to, bool checksum);
std::uint64_t checksum_of(std::span<const ConstFragment> fragments);
std::uint64_t checksum_of(std::span<const Fragment> fragments);

}  // namespace newmoon
