// Canonical CBOR (RFC 8949, 4.2.1: definite lengths, shortest heads), the few
// types that block hashes and scopes use. Internal to hash/. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "hash/cbor_integers.h"
#include "hash/message_buffer.h"

namespace newmoon {

class CborWriter {
 public:
  // `out` must outlive the writer, which appends to it.
  explicit CborWriter(MessageBuffer& out) : out_(out) {}

  // The head of an array; its `count` elements follow.
  void array(std::uint64_t count) { head(4, count); }
  void bytes(ByteView value);
  void text(std::string_view value);
  void unsigned_integer(std::uint64_t value) { head(0, value); }
  void integer(std::int64_t value);
  void null() { out_.put(0xf6); }
  // One integer after the other; array() goes before.
  void integers(std::span<const std::int32_t> values) {
    out_.commit(write_cbor_integers(out_.room(cbor_integers_room(values.size())), values));
  }

 private:
  void head(std::uint8_t major, std::uint64_t argument);

  MessageBuffer& out_;
};

}  // namespace newmoon
