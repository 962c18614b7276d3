#include "hash/pickle.h"

#include <array>

namespace newmoon {
namespace {

// Opcodes, by their names in CPython's pickle.py.
constexpr std::uint8_t kProto = 0x80;
constexpr std::uint8_t kFrame = 0x95;
constexpr std::uint8_t kMemoize = 0x94;
constexpr std::uint8_t kShortBinbytes = 'C';
constexpr std::uint8_t kShortBinunicode = 0x8c;
constexpr std::uint8_t kBinunicode = 'X';
constexpr std::uint8_t kBinint1 = 'K';  // u8
constexpr std::uint8_t kBinint2 = 'M';  // u16
constexpr std::uint8_t kBinint = 'J';   // i32
constexpr std::uint8_t kMark = '(';
constexpr std::uint8_t kTuple = 't';  // of all since the mark
constexpr std::uint8_t kEmptyTuple = ')';
constexpr std::uint8_t kTuple1 = 0x85;  // then Tuple2, Tuple3
constexpr std::uint8_t kStop = '.';

constexpr std::size_t kFrameHeadBytes = 2 + 1 + 8;

// Writes the opcode and its argument; returns their end. The form is chosen
// without a branch, as for CBOR (hash/cbor_integers.h). Touches 8 bytes.
std::uint8_t* write_integer(std::uint8_t* at, std::int32_t value) {
  struct Form {
    std::uint8_t opcode, bytes;
  };
  static constexpr std::array<Form, 3> kForms = {{{kBinint1, 2}, {kBinint2, 3}, {kBinint, 5}}};
  const auto bits = static_cast<std::uint32_t>(value);
  const Form& form = kForms[(bits > 0xff) + (bits > 0xffff)];
  store_le<std::uint64_t>(at, form.opcode | std::uint64_t{bits} << 8);
  return at + form.bytes;
}

}  // namespace

PickleWriter::PickleWriter(MessageBuffer& out) : start_(out.size()), out_(out) {
  std::uint8_t* const at = out_.room(kFrameHeadBytes);
  at[0] = kProto;
  at[1] = 5;
  at[2] = kFrame;  // its length is set by finish()
  out_.commit(at + kFrameHeadBytes);
}

void PickleWriter::bytes(ByteView value) {
  out_.put(kShortBinbytes);
  out_.put(static_cast<std::uint8_t>(value.size()));
  out_.put(value);
  out_.put(kMemoize);
}

void PickleWriter::text(std::string_view value) {
  if (value.size() < 256) {
    out_.put(kShortBinunicode);
    out_.put(static_cast<std::uint8_t>(value.size()));
  } else {
    std::uint8_t* const at = out_.room(5);
    at[0] = kBinunicode;
    store_le(at + 1, static_cast<std::uint32_t>(value.size()));
    out_.commit(at + 5);
  }
  out_.put(as_bytes(value));
  out_.put(kMemoize);
}

void PickleWriter::integers(std::span<const std::int32_t> values) {
  std::uint8_t* at = out_.room(5 * values.size() + 3);
  for (const std::int32_t value : values) at = write_integer(at, value);
  out_.commit(at);
}

void PickleWriter::begin_tuple(std::size_t count) {
  if (count > 3) out_.put(kMark);
}

void PickleWriter::end_tuple(std::size_t count) {
  if (count == 0) return out_.put(kEmptyTuple);  // one object for all, never memoized
  out_.put(count > 3 ? kTuple : static_cast<std::uint8_t>(kTuple1 + count - 1));
  out_.put(kMemoize);
}

bool PickleWriter::finish() {
  out_.put(kStop);
  const std::size_t body_bytes = out_.size() - start_ - kFrameHeadBytes;
  store_le<std::uint64_t>(out_.at(start_ + 3), body_bytes);
  return body_bytes <= kBodyBytesMax;
}

}  // namespace newmoon
