#include "hash/cbor.h"

#include <array>
#include <bit>

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

// CBOR's negative n is major type 1 of -1 - n, which is ~n.
std::uint8_t* write_negative(std::uint8_t* at, std::int64_t value) {
  return write_head(at, 1, ~static_cast<std::uint64_t>(value));
}

// A token id, 0 or more, without a branch: ids are of all sizes in no order, and one
// mispredicted branch costs more than an id. Writes 8 bytes, of which those before
// the returned end count.
std::uint8_t* write_token(std::uint8_t* at, std::uint32_t value) {
  struct Form {
    std::uint8_t head;
    std::uint8_t bytes;
    std::uint8_t shift;  // moves the value's lowest bytes, big-endian, behind the head
  };
  static constexpr std::array<Form, 4> kForms = {
      {{0, 1, 56}, {24, 2, 48}, {25, 3, 40}, {26, 5, 24}}};
  const Form& form = kForms[(value > 23) + (value > 0xff) + (value > 0xffff)];
  store_le<std::uint64_t>(at, std::byteswap(std::uint64_t{value}) >> form.shift | form.head);
  return at + form.bytes;
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
  if (value >= 0) return head(0, static_cast<std::uint64_t>(value));
  out_.commit(write_negative(out_.room(kHeadBytesMax), value));
}

void CborWriter::integer_array(std::span<const std::int32_t> values) {
  array(values.size());
  std::uint8_t* at = out_.room(8 * values.size());
  for (const std::int32_t value : values) {
    at = value < 0 ? write_negative(at, value) : write_token(at, static_cast<std::uint32_t>(value));
  }
  out_.commit(at);
}

}  // namespace newmoon
