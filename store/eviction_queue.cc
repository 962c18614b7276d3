#include "store/eviction_queue.h"

namespace newmoon {
namespace {

// So that a queue of values in use cannot hold its lock for long.
constexpr int kSecondChancesMax = 64;

}  // namespace

void EvictionQueue::push(Entry* entry) {
  MutexLock lock(mutex_);
  link(entry);
}

Entry* EvictionQueue::pop() {
  MutexLock lock(mutex_);
  Entry* entry = unlink_oldest();
  for (int chances = 0; entry != nullptr && chances < kSecondChancesMax; ++chances) {
    if (!entry->used.load(std::memory_order_relaxed)) break;
    entry->used.store(false, std::memory_order_relaxed);
    link(entry);
    entry = unlink_oldest();
  }
  return entry;
}

Entry* EvictionQueue::pop_oldest() {
  MutexLock lock(mutex_);
  return unlink_oldest();
}

bool EvictionQueue::unlink(Entry* entry) {
  MutexLock lock(mutex_);
  if (entry == oldest_) return unlink_oldest() != nullptr;
  if (entry->older == nullptr) return false;
  entry->older->newer = entry->newer;
  (entry == newest_ ? newest_ : entry->newer->older) = entry->older;
  entry->older = nullptr;
  return true;
}

void EvictionQueue::link(Entry* entry) {
  entry->queued_tick = ticks_.fetch_add(1, std::memory_order_relaxed);
  entry->newer = nullptr;
  entry->older = newest_;
  if (newest_ == nullptr) {
    oldest_ = entry;
    oldest_tick_.store(entry->queued_tick, std::memory_order_relaxed);
  } else {
    newest_->newer = entry;
  }
  newest_ = entry;
}

Entry* EvictionQueue::unlink_oldest() {
  Entry* entry = oldest_;
  if (entry == nullptr) return nullptr;
  oldest_ = entry->newer;
  if (oldest_ == nullptr) {
    newest_ = nullptr;
  } else {
    oldest_->prefetch();  // the next one to go, long untouched
    oldest_->older = nullptr;
  }
  oldest_tick_.store(oldest_ == nullptr ? kNever : oldest_->queued_tick, std::memory_order_relaxed);
  return entry;
}

}  // namespace newmoon
