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
  // CPython starts another frame at this size; such a pickle is not written here.
  static constexpr std::size_t kBodyBytesMax = 64 * 1024 - 1;

  // `out` must outlive the writer, which appends one pickle to it.
  explicit PickleWriter(MessageBuffer& out);

  // REQUIRES: value.size() < 256.
  void bytes(ByteView value);
  void text(std::string_view value);
  void none() { out_.put('N'); }
  // A tuple of ints.
  void integer_tuple(std::span<const std::int32_t> values);
  // Makes a tuple of the last `count` items. REQUIRES: 1 <= count <= 3.
  void tuple(int count);
  // Ends the pickle. Returns whether it kept to kBodyBytesMax.
  bool finish();

 private:
  std::size_t start_;
  MessageBuffer& out_;
};

}  // namespace newmoon
