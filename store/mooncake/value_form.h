// How a value lies in Mooncake. Byte table in docs/formats.md, "Value".
#pragma once

#include <cstdint>
#include <optional>

#include "hash/value.h"

namespace newmoon {

// A large payload begins on a page, behind zeros: values whose sizes are whole pages then lie on
// pages, and copying from pages to pages is 3% faster than to 128 bytes behind them. 1.1% of
// 360 KiB; of smaller ones it would be more.
inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kOnPagesFrom = 256 << 10;

// Bytes in front of a payload of so many.
constexpr std::uint64_t payload_offset(std::uint64_t payload_bytes) {
  return payload_bytes < kOnPagesFrom ? sizeof(ValueHeader) : kPageBytes;
}

constexpr std::uint64_t stored_bytes(std::uint64_t payload_bytes) {
  return payload_offset(payload_bytes) + payload_bytes;
}

// The other way round; nullopt: no value has so many.
constexpr std::optional<std::uint64_t> payload_bytes_of(std::uint64_t stored) {
  for (const std::uint64_t offset : {kPageBytes, std::uint64_t{sizeof(ValueHeader)}}) {
    if (stored >= offset && payload_offset(stored - offset) == offset) return stored - offset;
  }
  return std::nullopt;
}

}  // namespace newmoon
