// The values of one scope in a memory store: by shard and block hash, in the order
// in which they are given up, and, if they are small, with the memory they are in.
// All of it belongs to the scope so that dropping a scope is dropping a pointer:
// whoever comes afterwards does not find it, and what it held is freed behind, in
// slices, with no lock that another scope's users want.
//
// Split into partitions with a lock each, held for a few entries and never while
// bytes are copied. A partition grows by linear hashing, a bucket at a time: there
// is no rehash to wait for. Any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "hash/block_hash.h"
#include "hash/key.h"
#include "store/entry.h"
#include "store/eviction_queue.h"
#include "store/page_pool.h"
#include "store/slot_arena.h"

namespace newmoon {

class ScopeIndex : public std::enable_shared_from_this<ScopeIndex> {
 public:
  enum class Insert { kDone, kThereAlready, kClosed };

  // What all scopes of a store share; outlives them.
  struct Shared {
    PagePool& pool;
    SlotArena& large_values;
    std::size_t small_slab_bytes_max;
    std::atomic<std::uint64_t>& ticks;
  };

  explicit ScopeIndex(const Shared& shared);
  ScopeIndex(const ScopeIndex&) = delete;
  ScopeIndex& operator=(const ScopeIndex&) = delete;

  // Where an entry of that size is to be allocated.
  SlotArena& arena_for(std::size_t entry_bytes);

  // The entry with a reference for the caller, marked as used; nullptr: not there.
  Entry* find(const Shard& shard, const BlockHash& block);
  bool contains(const Shard& shard, const BlockHash& block);
  // How many leading blocks are there; marks them as used.
  std::size_t hit_prefix(const Shard& shard, std::span<const BlockHash> blocks);

  // Takes the entry over, unless its key is there or the index was closed; then it
  // stays the caller's.
  Insert insert(Entry* entry);
  // The key's entry, taken out, with the index's reference; nullptr: not there, or about
  // to be evicted by another thread.
  Entry* remove(const Shard& shard, const BlockHash& block);
  // The next entry to give up, taken out, with the index's reference; nullptr: none.
  Entry* evict();
  // When that one was last queued, in ticks; EvictionQueue::kNever: none.
  std::uint64_t oldest_tick() const { return queue_.oldest_tick(); }

  // Refuses inserts from now on.
  void close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }
  // Frees a part of the memory: `count` large values, slabs or index segments.
  // False: nothing is left. REQUIRES: closed, and nobody else uses it any more.
  bool free_slice(std::size_t count);

  // Of the list of those that are purged and used by nobody any more: who hands one over
  // cannot fail. Guarded by who keeps the list.
  std::unique_ptr<ScopeIndex> next_unused;

  std::uint64_t blocks() const { return blocks_.load(std::memory_order_relaxed); }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // What freeing it brings back.
  std::uint64_t held_bytes() const;

 private:
  static constexpr std::size_t kPartitions = 8;
  static constexpr std::size_t kSegmentBuckets = 128;
  using Segment = std::array<Entry*, kSegmentBuckets>;

  struct KeyHash {
    std::uint32_t partition;
    std::uint32_t tag;
  };

  class Partition {
   public:
    Entry* find(std::uint32_t tag, std::uint64_t shard, const BlockHash& block) NM_REQUIRES(mutex);
    void add(Entry* entry) NM_REQUIRES(mutex);
    void remove(Entry* entry) NM_REQUIRES(mutex);
    // Forgets the entries of up to `count` segments; false: there was none.
    bool drop_segments(std::size_t count) NM_REQUIRES(mutex);
    void prefetch_bucket(std::uint32_t tag) NM_REQUIRES(mutex);
    void prefetch_entry(std::uint32_t tag) NM_REQUIRES(mutex);

    Mutex mutex;

   private:
    Entry*& bucket(std::uint32_t tag) NM_REQUIRES(mutex);
    Entry*& bucket_at(std::size_t index) NM_REQUIRES(mutex);
    void grow() NM_REQUIRES(mutex);

    std::vector<std::unique_ptr<Segment>> segments_ NM_GUARDED_BY(mutex);
    std::size_t buckets_ NM_GUARDED_BY(mutex) = 0;
    std::size_t entries_ NM_GUARDED_BY(mutex) = 0;
  };

  static KeyHash hash_of(std::uint64_t shard, ByteView block);
  void take_out(Partition& partition, Entry* entry) NM_REQUIRES(partition.mutex);
  std::size_t hit_run(std::uint64_t shard, std::span<const BlockHash> run);

  bool free_large_values(std::size_t count);

  SlotArena small_values_;
  SlotArena& large_values_;
  EvictionQueue queue_;
  std::array<Partition, kPartitions> partitions_;
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> blocks_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> large_bytes_{0};  // of the values in large_values_
};

}  // namespace newmoon
