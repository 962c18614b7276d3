#include "store/eviction_queue.h"

#include "store/scope_index.h"

namespace newmoon {
namespace {

// So that a queue of values in use cannot hold its lock for long.
constexpr int kSecondChancesMax = 64;

}  // namespace

void EvictionQueue::push(Entry* entry) {
  MutexLock lock(mutex_);
  link(entry);
}

void EvictionQueue::remove(std::span<Entry* const> entries) {
  MutexLock lock(mutex_);
  for (Entry* entry : entries) {
    if (entry->queued) unlink(entry);
  }
}

EvictionQueue::Victim EvictionQueue::pop() {
  MutexLock lock(mutex_);
  Entry* entry = oldest_unused();
  if (entry == nullptr) return {};
  unlink(entry);
  entry->references.fetch_add(1, std::memory_order_relaxed);
  // Whoever holds an index takes its entries off the queue before letting go.
  return {entry, entry->index->shared_from_this()};
}

Entry* EvictionQueue::oldest_unused() {
  for (int chances = 0; oldest_ != nullptr && chances < kSecondChancesMax; ++chances) {
    Entry* entry = oldest_;
    if (!entry->used.load(std::memory_order_relaxed)) return entry;
    entry->used.store(false, std::memory_order_relaxed);
    unlink(entry);
    link(entry);
  }
  return oldest_;
}

void EvictionQueue::link(Entry* entry) {
  entry->queued = true;
  entry->older = newest_;
  entry->newer = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->newer) = entry;
  newest_ = entry;
}

void EvictionQueue::unlink(Entry* entry) {
  entry->queued = false;
  (entry->older == nullptr ? oldest_ : entry->older->newer) = entry->newer;
  (entry->newer == nullptr ? newest_ : entry->newer->older) = entry->older;
}

}  // namespace newmoon
