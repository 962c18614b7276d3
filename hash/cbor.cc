#include "hash/cbor.h"

namespace newmoon {
namespace {

constexpr std::size_t kHeadBytesMax = 9;

// Writes `argument` in the shortest form of 1, 2, 3, 5 or 9 bytes; returns its end.
std::uint8_t* write_head(std::uint8_t* at, std::uint8_t major, std::uint64_t argument) {
  const auto type = static_cast<std::uint8_t>(major << 5);
  if (argument < 24) {
    *at = static_cast<std::uint8_t>(type | argument);
    return at + 1;
  }
  if (argument <= 0xff) {
    at[0] = type | 24;
    at[1] = static_cast<std::uint8_t>(argument);
    return at + 2;
  }
  if (argument <= 0xffff) {
    at[0] = type | 25;
    store_be(at + 1, static_cast<std::uint16_t>(argument));
    return at + 3;
  }
  if (argument <= 0xffffffff) {
    at[0] = type | 26;
    store_be(at + 1, static_cast<std::uint32_t>(argument));
    return at + 5;
  }
  at[0] = type | 27;
  store_be(at + 1, argument);
  return at + 9;
}

}  // namespace

void CborWriter::head(std::uint8_t major, std::uint64_t argument) {
  out_.commit(write_head(out_.room(kHeadBytesMax), major, argument));
}

void CborWriter::bytes(ByteView value) {
  head(2, value.size());
  out_.put(value);
}

void CborWriter::text(std::string_view value) {
  head(3, value.size());
  out_.put(as_bytes(value));
}

void CborWriter::integer(std::int64_t value) {
  // A negative n is major type 1 of -1 - n, which is ~n.
  if (value < 0) return head(1, ~static_cast<std::uint64_t>(value));
  head(0, static_cast<std::uint64_t>(value));
}

}  // namespace newmoon
