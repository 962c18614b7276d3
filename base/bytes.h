// Byte buffers, hex, and fixed-endian integers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace newmoon {

using Bytes = std::vector<std::uint8_t>;
using ByteView = std::span<const std::uint8_t>;
using MutableByteView = std::span<std::uint8_t>;

inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Bytes to_bytes(std::string_view text) {
  const ByteView view = as_bytes(text);
  return Bytes(view.begin(), view.end());
}

// Lower-case hex, two digits a byte.
std::string to_hex(ByteView bytes);
// nullopt on an odd length or a character that is no hex digit.
std::optional<Bytes> from_hex(std::string_view hex);
// Into `out`, of which every byte is written; false if `hex` is not hex of that size.
bool from_hex(std::string_view hex, MutableByteView out);

// One load or store each, which compilers do not make of a loop over bytes.
template <class Int>
Int load_le(const std::uint8_t* at) {
  Int value;
  std::memcpy(&value, at, sizeof value);
  return std::endian::native == std::endian::little ? value : std::byteswap(value);
}
template <class Int>
void store_le(std::uint8_t* at, Int value) {
  if constexpr (std::endian::native != std::endian::little) value = std::byteswap(value);
  std::memcpy(at, &value, sizeof value);
}

template <class Int>
Int load_be(const std::uint8_t* at) {
  return std::byteswap(load_le<Int>(at));
}
template <class Int>
void store_be(std::uint8_t* at, Int value) {
  store_le<Int>(at, std::byteswap(value));
}

template <class Int>
void append_be(Bytes& out, Int value) {
  out.resize(out.size() + sizeof(Int));
  store_be<Int>(out.data() + out.size() - sizeof(Int), value);
}

inline void append(Bytes& out, ByteView more) { out.insert(out.end(), more.begin(), more.end()); }

}  // namespace newmoon
