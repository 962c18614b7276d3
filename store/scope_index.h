// The values of one scope in a memory store, by shard and block hash. A scope has
// an index of its own so that dropping a scope is dropping a pointer: whoever
// comes afterwards does not find the index, and its entries are taken out of it
// behind, a few at a time, under locks that no lookup of another scope wants.
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

namespace newmoon {

class ScopeIndex : public std::enable_shared_from_this<ScopeIndex> {
 public:
  enum class Insert { kDone, kThereAlready, kClosed };

  ScopeIndex() = default;
  ScopeIndex(const ScopeIndex&) = delete;
  ScopeIndex& operator=(const ScopeIndex&) = delete;

  // The entry with a reference for the caller, marked as used; nullptr: not there.
  Entry* find(const Shard& shard, const BlockHash& block);
  bool contains(const Shard& shard, const BlockHash& block);
  // How many leading blocks are there; marks them as used.
  std::size_t hit_prefix(const Shard& shard, std::span<const BlockHash> blocks);

  // Takes the entry over and queues it, unless its key is there or the index was
  // closed; then it stays the caller's.
  Insert insert(Entry* entry, EvictionQueue& queue);
  // True: the entry was there; the index's reference is the caller's now.
  bool remove(Entry* entry);
  // Up to `count` entries, each with the index's reference; empty: none is left, nor
  // will be. REQUIRES: closed.
  std::vector<Entry*> take(std::size_t count);

  // Refuses inserts from now on. One that runs at this moment may still succeed, and
  // take() finds what it brought.
  void close() { closed_.store(true); }

  std::uint64_t blocks() const { return blocks_.load(std::memory_order_relaxed); }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

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
    bool remove(Entry* entry) NM_REQUIRES(mutex);
    void take(std::size_t count, std::vector<Entry*>& out) NM_REQUIRES(mutex);
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
  std::size_t hit_run(std::uint64_t shard, std::span<const BlockHash> run);

  std::array<Partition, kPartitions> partitions_;
  std::atomic<std::size_t> emptied_partitions_{0};
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> blocks_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace newmoon
