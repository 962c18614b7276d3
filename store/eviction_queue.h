// The order in which a memory store gives values up: least recently used first,
// approximately. A use only sets Entry::used; a value that was used since it was
// queued is queued anew instead of evicted (second chance), so that lookups never
// touch the queue or its lock. Any thread may call.
#pragma once

#include <memory>
#include <span>

#include "base/thread_annotations.h"
#include "store/entry.h"

namespace newmoon {

class EvictionQueue {
 public:
  struct Victim {
    Entry* entry = nullptr;  // with a reference of its own
    std::shared_ptr<ScopeIndex> index;
  };

  // As the newest. REQUIRES: not queued.
  void push(Entry* entry);
  // Those that are queued.
  void remove(std::span<Entry* const> entries);
  // The next to give up, taken off the queue. No entry: the queue is empty.
  Victim pop();

 private:
  void link(Entry* entry) NM_REQUIRES(mutex_);
  void unlink(Entry* entry) NM_REQUIRES(mutex_);
  Entry* oldest_unused() NM_REQUIRES(mutex_);

  Mutex mutex_;
  Entry* oldest_ NM_GUARDED_BY(mutex_) = nullptr;
  Entry* newest_ NM_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace newmoon
