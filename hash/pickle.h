// Pickle protocol 5 as CPython's C pickler writes it, the few types that block
// hashes use: one frame, every string, bytes and tuple memoized, no memo reuse
// (equal strings are taken for distinct objects). Internal to hash/. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "hash/message_buffer.h"

namespace newmoon {

class PickleWriter {
 public:
  // CPython starts another frame soon behind this size; no such pickle is made here.
  static constexpr std::size_t kBodyBytesMax = 64 * 1024 - 1;

  // `out` must outlive the writer, which appends one pickle to it.
  explicit PickleWriter(MessageBuffer& out);

  // REQUIRES: value.size() < 256.
  void bytes(ByteView value);
  void text(std::string_view value);
  void none() { out_.put('N'); }
  // One int after the other.
  void integers(std::span<const std::int32_t> values);
  // Around the `count` items of a tuple; begin_tuple() may be left out for 1 to 3.
  void begin_tuple(std::size_t count);
  void end_tuple(std::size_t count);
  // Ends the pickle. Returns whether it kept to kBodyBytesMax.
  bool finish();

 private:
  std::size_t start_;
  MessageBuffer& out_;
};

}  // namespace newmoon
