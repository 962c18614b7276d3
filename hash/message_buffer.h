// Where a message to be hashed is encoded: a stack buffer that goes to the heap
// only for a message of unusual length, and is reused from message to message.
// Internal to hash/. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"

namespace newmoon {

class MessageBuffer {
 public:
  MessageBuffer() = default;
  MessageBuffer(const MessageBuffer&) = delete;  // at_ points into the object
  MessageBuffer& operator=(const MessageBuffer&) = delete;

  ByteView view() const { return {begin_, at_}; }
  std::size_t size() const { return static_cast<std::size_t>(at_ - begin_); }
  // Drops what is behind the first `size` bytes. REQUIRES: size <= size().
  void truncate(std::size_t size) { at_ = begin_ + size; }

  // The place of the next byte, with room for `more` bytes behind it. Written
  // bytes count once commit() is told their end. Valid until the next call.
  std::uint8_t* room(std::size_t more) {
    if (static_cast<std::size_t>(end_ - at_) < more) grow(more);
    return at_;
  }
  void commit(std::uint8_t* end) { at_ = end; }

  void put(std::uint8_t byte) { *room(1) = byte, ++at_; }
  void put(ByteView bytes) {
    std::uint8_t* const to = room(bytes.size());
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    commit(to + bytes.size());
  }
  // Bytes written before, to be written anew. REQUIRES: offset <= size().
  std::uint8_t* at(std::size_t offset) { return begin_ + offset; }

 private:
  void grow(std::size_t more) {
    const std::size_t used = size();
    Bytes bigger(std::max(2 * static_cast<std::size_t>(end_ - begin_), used + more));
    std::memcpy(bigger.data(), begin_, used);
    heap_.swap(bigger);
    begin_ = heap_.data();
    at_ = begin_ + used;
    end_ = begin_ + heap_.size();
  }

  std::array<std::uint8_t, 1024> stack_;
  Bytes heap_;
  std::uint8_t* begin_ = stack_.data();
  std::uint8_t* at_ = stack_.data();
  std::uint8_t* end_ = stack_.data() + stack_.size();
};

}  // namespace newmoon
