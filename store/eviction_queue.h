// The order in which one scope's values are given up: least recently used first,
// approximately. A use only sets Entry::used; a value that was used since it was
// queued is queued anew instead of evicted (second chance), so that lookups never
// touch the queue or its lock. Ticks compare the queues of several scopes.
// Any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "base/thread_annotations.h"
#include "store/entry.h"

namespace newmoon {

class EvictionQueue {
 public:
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  // `ticks`: counts what is queued, over all queues; must outlive this.
  explicit EvictionQueue(std::atomic<std::uint64_t>& ticks) : ticks_(ticks) {}

  // As the newest. REQUIRES: not queued.
  void push(Entry* entry);
  // The next to give up, taken off the queue; nullptr: the queue is empty.
  Entry* pop();
  // Takes it off the queue, wherever it stands. False: it is not queued.
  bool unlink(Entry* entry);
  // The oldest, used or not.
  Entry* pop_oldest();
  // When the oldest was queued; kNever: the queue is empty.
  std::uint64_t oldest_tick() const { return oldest_tick_.load(std::memory_order_relaxed); }

 private:
  void link(Entry* entry) NM_REQUIRES(mutex_);
  Entry* unlink_oldest() NM_REQUIRES(mutex_);

  std::atomic<std::uint64_t>& ticks_;
  std::atomic<std::uint64_t> oldest_tick_{kNever};
  Mutex mutex_;
  Entry* oldest_ NM_GUARDED_BY(mutex_) = nullptr;
  Entry* newest_ NM_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace newmoon
