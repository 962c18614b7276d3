// One value of a memory store and what the store knows about it. Laid out so that
// a lookup reads two cache lines: the chain, the tag and the key's fields in the
// header; a 64-byte value takes 256 bytes in all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hash/value.h"
#include "store/slot_arena.h"

namespace newmoon {

struct Entry {
  Entry* next = nullptr;          // in its bucket; guarded by its partition's lock
  std::uint32_t tag = 0;          // low half of the key's hash
  std::atomic<bool> used{false};  // since it was last queued for eviction
  ValueHeader header;             // says the key and the payload's length; immutable
  Entry* newer = nullptr;         // in the eviction queue; guarded by the queue's lock
  std::uint64_t queued_tick = 0;  // likewise
  SlotArena::Slab* slab = nullptr;
  // The index holds one reference, each reader another; the last to drop frees it.
  std::atomic<std::uint32_t> references{1};

  std::uint8_t* payload();
  std::uint64_t bytes() const { return sizeof(ValueHeader) + header.payload_bytes; }
  SlotArena::Slot slot() { return {reinterpret_cast<std::uint8_t*>(this), slab}; }
  void mark_used() {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
  }
};

// The payload starts on a cache line.
inline constexpr std::size_t kEntryBytes = (sizeof(Entry) + 63) / 64 * 64;
static_assert(kEntryBytes == 192 && offsetof(Entry, header) == 16);
inline std::uint8_t* Entry::payload() {
  return reinterpret_cast<std::uint8_t*>(this) + kEntryBytes;
}

}  // namespace newmoon
