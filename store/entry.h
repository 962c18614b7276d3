// What a memory store knows about one value, behind the value's payload in one slot.
// The payload comes first so that large ones start on a page, as tensors do: copies
// between equal offsets of pages are the fastest. Laid out so that a lookup reads two
// cache lines: the chain, the tag and the key's fields in the header. A 64-byte value
// takes 256 bytes in all.
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
  Entry* older = nullptr;         // likewise
  std::uint64_t queued_tick = 0;  // likewise
  SlotArena::Slab* slab = nullptr;
  // The index holds one reference, each reader another; the last to drop frees it.
  std::atomic<std::uint32_t> references{1};

  std::uint8_t* payload() {
    return reinterpret_cast<std::uint8_t*>(this) - payload_room(header.payload_bytes);
  }
  std::uint64_t bytes() const { return sizeof(ValueHeader) + header.payload_bytes; }
  SlotArena::Slot slot() { return {payload(), slab}; }
  // Where in the slot the entry starts: on a cache line.
  static std::uint64_t payload_room(std::uint64_t payload_bytes) {
    return (payload_bytes + 63) / 64 * 64;
  }
  void prefetch() const {
    const auto* lines = reinterpret_cast<const std::uint8_t*>(this);
    for (std::size_t at = 0; at < sizeof(Entry); at += 64) __builtin_prefetch(lines + at);
  }
  void mark_used() {
    if (!used.load(std::memory_order_relaxed)) used.store(true, std::memory_order_relaxed);
  }
};

// Beside the payload's room.
inline constexpr std::size_t kEntryBytes = (sizeof(Entry) + 63) / 64 * 64;
static_assert(kEntryBytes == 192 && offsetof(Entry, header) == 16);

}  // namespace newmoon
