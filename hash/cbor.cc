#include "hash/cbor.h"

#include <array>

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
std::uint8_t* write_integer(std::uint8_t* at, std::int64_t value) {
  return value >= 0 ? write_head(at, 0, static_cast<std::uint64_t>(value))
                    : write_head(at, 1, ~static_cast<std::uint64_t>(value));
}

// write_integer() without a branch: token ids are of all sizes in no order, and one
// mispredicted branch costs more than an id. Writes 8 bytes, of which those before
// the returned end count.
std::uint8_t* write_token(std::uint8_t* at, std::int32_t value) {
  struct Form {
    std::uint64_t head;  // in the first byte, big-endian
    std::uint8_t shift;  // puts the argument behind it
    std::uint8_t bytes;
  };
  static constexpr std::array<Form, 4> kForms = {{{0, 56, 1},
                                                  {std::uint64_t{24} << 56, 48, 2},
                                                  {std::uint64_t{25} << 56, 40, 3},
                                                  {std::uint64_t{26} << 56, 24, 5}}};
  const auto sign = static_cast<std::uint32_t>(value >> 31);  // all ones if negative
  const std::uint32_t argument = static_cast<std::uint32_t>(value) ^ sign;
  const Form& form = kForms[(argument > 23) + (argument > 0xff) + (argument > 0xffff)];
  const std::uint64_t major = std::uint64_t{sign & 1} << 61;
  store_be<std::uint64_t>(at, form.head | major | std::uint64_t{argument} << form.shift);
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
  out_.commit(write_integer(out_.room(kHeadBytesMax), value));
}

void CborWriter::integer_array(std::span<const std::int32_t> values) {
  array(values.size());
  std::uint8_t* at = out_.room(8 * values.size());
  for (const std::int32_t value : values) at = write_token(at, value);
  out_.commit(at);
}

}  // namespace newmoon
