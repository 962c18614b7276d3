#include "store/scope_index.h"

#include <algorithm>
#include <bit>

namespace newmoon {
namespace {

// Blocks looked up under one round of locks. Enough of them in each partition for
// their cache misses to overlap; a lock is held for some microseconds at most.
constexpr std::size_t kRunBlocks = 128;

// Up to this size, an entry lives in the memory of its scope.
constexpr std::size_t kSmallEntryBytesMax = 4096;

// A step of a multiply-and-fold hash: each bit of the word reaches both halves of
// the 128-bit product. Block hashes are digests already; those of tests are not.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  const auto product =
      static_cast<unsigned __int128>(state ^ word ^ 0x9e3779b97f4a7c15ULL) * 0xd6e8feb86659fd93ULL;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

bool is_key(const Entry& entry, std::uint64_t shard, const BlockHash& block) {
  const ByteView bytes = block.bytes();
  return entry.header.shard == shard && entry.header.block_hash_bytes == bytes.size() &&
         std::memcmp(entry.header.block_hash.data(), bytes.data(), bytes.size()) == 0;
}

}  // namespace

ScopeIndex::ScopeIndex(const Shared& shared)
    : small_values_(shared.pool, PagePool::kPageBytes, shared.small_slab_bytes_max),
      large_values_(shared.large_values),
      queue_(shared.ticks) {}

SlotArena& ScopeIndex::arena_for(std::size_t entry_bytes) {
  return entry_bytes <= kSmallEntryBytesMax ? small_values_ : large_values_;
}

ScopeIndex::KeyHash ScopeIndex::hash_of(std::uint64_t shard, ByteView block) {
  std::uint64_t words[BlockHash::kMaxSize / 8] = {};
  std::memcpy(words, block.data(), block.size());
  std::uint64_t state = shard;
  for (const std::uint64_t word : words) state = mix(state, word);
  return {static_cast<std::uint32_t>(state >> 61), static_cast<std::uint32_t>(state)};
}

Entry* ScopeIndex::find(const Shard& shard, const BlockHash& block) {
  const KeyHash hash = hash_of(shard.packed(), block.bytes());
  Partition& partition = partitions_[hash.partition];
  MutexLock lock(partition.mutex);
  Entry* entry = partition.find(hash.tag, shard.packed(), block);
  if (entry == nullptr) return nullptr;
  entry->mark_used();
  entry->references.fetch_add(1, std::memory_order_relaxed);
  return entry;
}

bool ScopeIndex::contains(const Shard& shard, const BlockHash& block) {
  return hit_run(shard.packed(), {&block, 1}) == 1;
}

std::size_t ScopeIndex::hit_prefix(const Shard& shard, std::span<const BlockHash> blocks) {
  std::size_t hits = 0;
  while (hits < blocks.size()) {
    const auto run = blocks.subspan(hits, std::min(kRunBlocks, blocks.size() - hits));
    const std::size_t run_hits = hit_run(shard.packed(), run);
    hits += run_hits;
    if (run_hits < run.size()) break;
  }
  return hits;
}

// REQUIRES: run.size() <= kRunBlocks.
std::size_t ScopeIndex::hit_run(std::uint64_t shard, std::span<const BlockHash> run) {
  struct Lookup {
    std::uint32_t tag;
    std::uint32_t position;
  };
  std::array<std::array<Lookup, kRunBlocks>, kPartitions> lookups;
  std::array<std::uint32_t, kPartitions> counts{};
  for (std::uint32_t i = 0; i < run.size(); ++i) {
    const KeyHash hash = hash_of(shard, run[i].bytes());
    lookups[hash.partition][counts[hash.partition]++] = {hash.tag, i};
  }
  std::size_t first_miss = run.size();
  for (std::size_t p = 0; p < kPartitions; ++p) {
    const std::span<const Lookup> mine{lookups[p].data(), counts[p]};
    if (mine.empty()) continue;
    Partition& partition = partitions_[p];
    MutexLock lock(partition.mutex);
    for (const Lookup& lookup : mine) partition.prefetch_bucket(lookup.tag);
    for (const Lookup& lookup : mine) partition.prefetch_entry(lookup.tag);
    for (const Lookup& lookup : mine) {
      if (lookup.position >= first_miss) break;
      Entry* entry = partition.find(lookup.tag, shard, run[lookup.position]);
      if (entry == nullptr) {
        first_miss = lookup.position;
        break;
      }
      entry->mark_used();
    }
  }
  return first_miss;
}

ScopeIndex::Insert ScopeIndex::insert(Entry* entry) {
  const ByteView bytes{entry->header.block_hash.data(), entry->header.block_hash_bytes};
  const KeyHash hash = hash_of(entry->header.shard, bytes);
  Partition& partition = partitions_[hash.partition];
  MutexLock lock(partition.mutex);
  if (closed_.load()) return Insert::kClosed;
  if (partition.find(hash.tag, entry->header.shard, BlockHash(bytes)) != nullptr) {
    return Insert::kThereAlready;
  }
  entry->tag = hash.tag;
  partition.add(entry);
  blocks_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(entry->bytes(), std::memory_order_relaxed);
  if (SlotArena::owner(entry->slot()) == &large_values_) large_bytes_ += entry->bytes();
  queue_.push(entry);  // from here on it can be evicted
  return Insert::kDone;
}

Entry* ScopeIndex::remove(const Shard& shard, const BlockHash& block) {
  const KeyHash hash = hash_of(shard.packed(), block.bytes());
  Partition& partition = partitions_[hash.partition];
  MutexLock lock(partition.mutex);
  Entry* entry = partition.find(hash.tag, shard.packed(), block);
  // Off the queue already: whoever took it waits for this lock, to take it out himself.
  if (entry == nullptr || !queue_.unlink(entry)) return nullptr;
  take_out(partition, entry);
  return entry;
}

void ScopeIndex::take_out(Partition& partition, Entry* entry) {
  partition.remove(entry);
  blocks_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(entry->bytes(), std::memory_order_relaxed);
  if (SlotArena::owner(entry->slot()) == &large_values_) large_bytes_ -= entry->bytes();
}

Entry* ScopeIndex::evict() {
  Entry* entry = queue_.pop();
  if (entry == nullptr) return nullptr;
  const KeyHash hash = hash_of(entry->header.shard,
                               {entry->header.block_hash.data(), entry->header.block_hash_bytes});
  Partition& partition = partitions_[hash.partition];
  MutexLock lock(partition.mutex);
  take_out(partition, entry);
  return entry;
}

std::uint64_t ScopeIndex::held_bytes() const { return small_values_.held_bytes() + large_bytes_; }

bool ScopeIndex::free_slice(std::size_t count) {
  if (free_large_values(count) || small_values_.release_slabs(count)) return true;
  for (Partition& partition : partitions_) {
    MutexLock lock(partition.mutex);
    if (partition.drop_segments(count)) return true;
  }
  return false;
}

// False: there are none. Small values on the way are left to their slabs.
bool ScopeIndex::free_large_values(std::size_t count) {
  if (large_bytes_ == 0) return false;
  for (std::size_t i = 0; i < count; ++i) {
    Entry* entry = queue_.pop_oldest();
    if (entry == nullptr) return false;
    if (SlotArena::owner(entry->slot()) != &large_values_) continue;
    large_bytes_ -= entry->bytes();
    SlotArena::free(entry->slot());
  }
  return true;
}

// Linear hashing: the first `buckets_ - 2^k` buckets of the 2^k have been split in
// two already, so that one bit more of the tag says in which half an entry is.
Entry*& ScopeIndex::Partition::bucket(std::uint32_t tag) {
  const std::size_t unsplit = std::bit_floor(buckets_);
  const std::size_t index = tag & (2 * unsplit - 1);
  return bucket_at(index < buckets_ ? index : index & (unsplit - 1));
}

Entry*& ScopeIndex::Partition::bucket_at(std::size_t index) {
  return (*segments_[index / kSegmentBuckets])[index % kSegmentBuckets];
}

Entry* ScopeIndex::Partition::find(std::uint32_t tag, std::uint64_t shard, const BlockHash& block) {
  if (buckets_ == 0) return nullptr;
  for (Entry* entry = bucket(tag); entry != nullptr; entry = entry->next) {
    if (entry->tag == tag && is_key(*entry, shard, block)) return entry;
  }
  return nullptr;
}

void ScopeIndex::Partition::prefetch_bucket(std::uint32_t tag) {
  if (buckets_ != 0) __builtin_prefetch(&bucket(tag));
}

void ScopeIndex::Partition::prefetch_entry(std::uint32_t tag) {
  if (buckets_ == 0) return;
  // As a number: the bucket may be empty, and null has no address behind it.
  const auto lines = reinterpret_cast<std::uintptr_t>(bucket(tag));
  __builtin_prefetch(reinterpret_cast<const void*>(lines));
  __builtin_prefetch(reinterpret_cast<const void*>(lines + 64));
}

void ScopeIndex::Partition::add(Entry* entry) {
  while ((entries_ + 1) * 4 > buckets_ * 3) grow();
  ++entries_;
  Entry*& head = bucket(entry->tag);
  entry->next = head;
  head = entry;
}

void ScopeIndex::Partition::grow() {
  if (buckets_ % kSegmentBuckets == 0) segments_.push_back(std::make_unique<Segment>());
  const std::size_t added = buckets_++;
  if (added == 0) return;
  const std::size_t half = std::bit_floor(added);
  Entry** from = &bucket_at(added - half);
  Entry** to = &bucket_at(added);
  while (Entry* entry = *from) {
    if ((entry->tag & (2 * half - 1)) != added) {
      from = &entry->next;
      continue;
    }
    *from = entry->next;
    entry->next = nullptr;
    *to = entry;
    to = &entry->next;
  }
}

// REQUIRES: it is there.
void ScopeIndex::Partition::remove(Entry* entry) {
  Entry** link = &bucket(entry->tag);
  while (*link != entry) link = &(*link)->next;
  *link = entry->next;
  --entries_;
}

bool ScopeIndex::Partition::drop_segments(std::size_t count) {
  if (segments_.empty()) return false;
  segments_.resize(segments_.size() - std::min(count, segments_.size()));
  buckets_ = 0;
  return true;
}

}  // namespace newmoon
