#include "store/memory_store.h"

#include <algorithm>
#include <bit>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/contain.h"
#include "store/other_length.h"
#include "store/page_pool.h"
#include "store/put_check.h"
#include "store/recent_map.h"
#include "store/scope_holds.h"
#include "store/scope_index.h"
#include "store/slot_arena.h"

namespace newmoon {
namespace {

constexpr std::size_t kDescriptionBytesMax = 1024;

// Of the slabs of large values, and of small ones in a scope that holds many: large
// enough for huge pages, small enough for a share of the budget to be worth a size.
std::size_t slab_bytes_max(std::uint64_t budget_bytes, std::uint64_t most) {
  const std::uint64_t share = std::bit_floor(budget_bytes / 64);
  return std::clamp<std::uint64_t>(share, PagePool::kPageBytes, most);
}

}  // namespace

// Lock order: scopes, indexes, then those inside an index (a partition's before its
// queue's, an arena's before the pool's). None is held while bytes are copied, while
// a scope is freed, or when the last use of an index may end (which posts a task).
class MemoryStore::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const MemoryStoreOptions& options, Clock& clock, Executor& executor)
      : options_(options),
        clock_(clock),
        executor_(executor),
        pool_(options.budget_bytes),
        large_values_(pool_, slab_bytes_max(options.budget_bytes, 8 << 20),
                      slab_bytes_max(options.budget_bytes, 8 << 20)),
        fenced_(options.fenced_scopes_max),
        descriptions_(options.descriptions_max),
        holds_(options.holds_max) {}
  // One by one: each would end the next one within its own destructor.
  ~Core() {
    while (take_unused() != nullptr) {
    }
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Freed by the last of its users: see on_last_use().
  using IndexPtr = std::shared_ptr<ScopeIndex>;

  // The scope's values; nullptr: none.
  IndexPtr find_index(const ScopeId& scope) {
    MutexLock lock(scopes_mutex_);
    const auto found = scopes_.find(scope);
    return found == scopes_.end() ? nullptr : found->second;
  }

  Status put(const PutItem& item);
  void drop(Entry* entry);
  void remove(const Key& key);
  Status purge_scope(const ScopeId& scope, bool for_good);
  void describe_scope(const ScopeId& scope, const std::string& description);
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease);
  std::uint64_t remove_all();
  StoreStats stats();
  std::vector<ScopeUsage> list_scopes();
  void stop() { stopping_ = true; }

 private:
  Result<IndexPtr> index_for_put(const PutItem& item);
  IndexPtr make_index();
  Result<Entry*> make_entry(ScopeIndex& index, const PutItem& item);
  std::optional<SlotArena::Slot> allocate(SlotArena& arena, std::size_t bytes);
  IndexPtr next_victim();
  ScopeIndex* find_oldest() NM_REQUIRES(indexes_mutex_);
  bool evict_one();
  void forget_if_empty(const IndexPtr& index, const ScopeId& scope);
  void on_last_use(ScopeIndex* index) noexcept;
  std::unique_ptr<ScopeIndex> take_unused();
  void add_unused(std::unique_ptr<ScopeIndex> index) noexcept;
  bool free_slice() noexcept;
  void free_behind() noexcept;
  void run_slice();

  const MemoryStoreOptions options_;
  Clock& clock_;
  Executor& executor_;
  PagePool pool_;
  SlotArena large_values_;
  std::atomic<std::uint64_t> ticks_{0};
  std::atomic<std::uint64_t> evicted_in_use_bytes_{0};  // their readers free them
  std::atomic<std::uint64_t> evicted_blocks_{0};
  std::atomic<std::uint64_t> refused_late_puts_{0};
  std::atomic<bool> freeing_{false};  // a task is queued or runs
  std::atomic<bool> stopping_{false};

  // Every index in memory, purged ones included.
  Mutex indexes_mutex_;
  std::vector<ScopeIndex*> indexes_ NM_GUARDED_BY(indexes_mutex_);
  // Whose values are the oldest, until they are as young as the next index's.
  std::weak_ptr<ScopeIndex> victim_ NM_GUARDED_BY(indexes_mutex_);
  std::uint64_t victim_until_tick_ NM_GUARDED_BY(indexes_mutex_) = 0;

  // Purged and used by nobody any more.
  Mutex unused_mutex_;
  std::unique_ptr<ScopeIndex> unused_ NM_GUARDED_BY(unused_mutex_);  // the first of a list

  Mutex scopes_mutex_;
  RecentMap<ScopeId, bool> fenced_ NM_GUARDED_BY(scopes_mutex_);
  RecentMap<ScopeId, std::string> descriptions_ NM_GUARDED_BY(scopes_mutex_);
  ScopeHolds holds_ NM_GUARDED_BY(scopes_mutex_);
  std::unordered_map<ScopeId, IndexPtr> scopes_ NM_GUARDED_BY(scopes_mutex_);
};

// --- put ---------------------------------------------------------------------

Status MemoryStore::Core::put(const PutItem& item) {
  if (Status checked = check_put(item); !checked) return checked;
  while (true) {
    const Result<IndexPtr> index = index_for_put(item);
    if (!index) return std::unexpected(index.error());
    if ((*index)->contains(item.key.shard, item.key.block)) return {};
    const Result<Entry*> entry = make_entry(**index, item);
    if (!entry) {
      forget_if_empty(*index, item.key.scope);
      return std::unexpected(entry.error());
    }
    const Result<ScopeIndex::Insert> inserted =
        contain([&]() -> Result<ScopeIndex::Insert> { return (*index)->insert(*entry); });
    if (inserted == ScopeIndex::Insert::kDone) return {};
    SlotArena::free((*entry)->slot());
    if (!inserted) forget_if_empty(*index, item.key.scope);
    if (!inserted) return std::unexpected(inserted.error());
    if (inserted == ScopeIndex::Insert::kThereAlready) return {};
    // The scope was purged meanwhile: refused, or put into its next index.
  }
}

Result<MemoryStore::Core::IndexPtr> MemoryStore::Core::index_for_put(const PutItem& item) {
  const ScopeId& scope = item.key.scope;
  MutexLock lock(scopes_mutex_);
  if (fenced_.find(scope) != nullptr) {
    ++refused_late_puts_;
    return fail(Code::kFenced, "scope " + scope.hex() + " was purged for good: drop the put");
  }
  // Under the lock: a purge that comes behind it closes the index that this put is given.
  if (item.not_after != Time::max() && clock_.now() >= item.not_after) {
    ++refused_late_puts_;
    return fail(Code::kDeadline, "memory store: nobody waits for this put any more");
  }
  const auto found = scopes_.find(scope);
  if (found != scopes_.end()) return found->second;
  IndexPtr index = make_index();
  scopes_.emplace(scope, index);
  return index;
}

MemoryStore::Core::IndexPtr MemoryStore::Core::make_index() {
  const ScopeIndex::Shared shared{pool_, large_values_,
                                  slab_bytes_max(options_.budget_bytes, 2 << 20), ticks_};
  IndexPtr index(new ScopeIndex(shared), [this](ScopeIndex* unused) { on_last_use(unused); });
  MutexLock lock(indexes_mutex_);
  indexes_.push_back(index.get());
  return index;
}

// Filled with the bytes, not yet in the index.
Result<Entry*> MemoryStore::Core::make_entry(ScopeIndex& index, const PutItem& item) {
  const std::uint64_t room = Entry::payload_room(item.header.payload_bytes);
  const std::size_t bytes = room + kEntryBytes;
  SlotArena& arena = index.arena_for(bytes);
  if (!arena.can_ever_hold(bytes)) {
    return fail(Code::kBadRequest, "put: a value of " + std::to_string(bytes) +
                                       " bytes is larger than the store's budget of " +
                                       std::to_string(options_.budget_bytes) +
                                       ": raise its budget (" + std::string(options_.budget_name) +
                                       ")");
  }
  const std::optional<SlotArena::Slot> slot = allocate(arena, bytes);
  if (!slot) return fail(Code::kBusy, "memory store: no room now, all bytes are in use");
  Entry* entry = new (slot->data + room) Entry;
  entry->slab = slot->slab;
  entry->header = item.header;
  const std::uint64_t checksum =
      gather(item.payload, {entry->payload(), item.header.payload_bytes}, item.checksum);
  if (item.checksum) set_checksum(entry->header, checksum);
  return entry;
}

// What was purged goes before what is still of use. Nothing left to give up is also what
// is seen when other threads have just freed all of it: then there is room now.
std::optional<SlotArena::Slot> MemoryStore::Core::allocate(SlotArena& arena, std::size_t bytes) {
  for (int in_vain = 0; in_vain < 3;) {
    if (std::optional<SlotArena::Slot> slot = arena.allocate(bytes)) return slot;
    in_vain = free_slice() || evict_one() ? 0 : in_vain + 1;
  }
  return std::nullopt;
}

// --- eviction ------------------------------------------------------------------

// The index with the oldest value; nullptr: no index has any.
MemoryStore::Core::IndexPtr MemoryStore::Core::next_victim() {
  IndexPtr victim;
  MutexLock lock(indexes_mutex_);
  victim = victim_.lock();
  if (victim && !victim->closed() && victim->oldest_tick() <= victim_until_tick_) return victim;
  while (ScopeIndex* oldest = find_oldest()) {
    victim_ = oldest->weak_from_this();
    if (IndexPtr found = victim_.lock()) return found;
    // Purged between the two: closed by now.
  }
  return nullptr;
}

ScopeIndex* MemoryStore::Core::find_oldest() {
  ScopeIndex* oldest = nullptr;
  std::uint64_t oldest_tick = EvictionQueue::kNever;
  victim_until_tick_ = EvictionQueue::kNever - 1;
  for (ScopeIndex* index : indexes_) {
    const std::uint64_t tick = index->closed() ? EvictionQueue::kNever : index->oldest_tick();
    victim_until_tick_ = std::min(victim_until_tick_, std::max(tick, oldest_tick));
    if (tick >= oldest_tick) continue;
    oldest = index;
    oldest_tick = tick;
  }
  return oldest;
}

bool MemoryStore::Core::evict_one() {
  const IndexPtr index = next_victim();
  Entry* entry = index == nullptr ? nullptr : index->evict();
  if (entry == nullptr) return index != nullptr;  // another thread was quicker: look again
  const ScopeId scope{entry->header.scope_id};
  ++evicted_blocks_;
  evicted_in_use_bytes_ += entry->bytes();
  drop(entry);
  forget_if_empty(index, scope);
  return true;
}

void MemoryStore::Core::remove(const Key& key) {
  const IndexPtr index = find_index(key.scope);
  Entry* entry = index == nullptr ? nullptr : index->remove(key.shard, key.block);
  if (entry == nullptr) return;
  evicted_in_use_bytes_ += entry->bytes();
  drop(entry);
  forget_if_empty(index, key.scope);
}

// So that scopes do not pile up. An insert that is on its way into the index finds
// it closed, as after a purge.
void MemoryStore::Core::forget_if_empty(const IndexPtr& index, const ScopeId& scope) {
  if (index->blocks() > 0) return;
  MutexLock lock(scopes_mutex_);
  const auto found = scopes_.find(scope);
  if (found == scopes_.end() || found->second != index || index->blocks() > 0) return;
  index->close();
  scopes_.erase(found);
}

// Gives a reference back; whoever gives the last one of an evicted entry frees it.
// The caller holds the entry's index.
void MemoryStore::Core::drop(Entry* entry) {
  if (entry->references.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  evicted_in_use_bytes_ -= entry->bytes();
  SlotArena::free(entry->slot());
}

// --- freeing ---------------------------------------------------------------------

// Any thread, while it may hold locks: only hands the index over. It is called where an
// exception would end the process, as all of freeing may be.
void MemoryStore::Core::on_last_use(ScopeIndex* index) noexcept {
  std::unique_ptr<ScopeIndex> unused(index);
  if (stopping_) return;
  add_unused(std::move(unused));
  free_behind();
}

void MemoryStore::Core::add_unused(std::unique_ptr<ScopeIndex> index) noexcept {
  MutexLock lock(unused_mutex_);
  index->next_unused = std::move(unused_);
  unused_ = std::move(index);
}

// nullptr: there is none.
std::unique_ptr<ScopeIndex> MemoryStore::Core::take_unused() {
  MutexLock lock(unused_mutex_);
  std::unique_ptr<ScopeIndex> index = std::move(unused_);
  if (index != nullptr) unused_ = std::move(index->next_unused);
  return index;
}

// False: nothing was left to free.
bool MemoryStore::Core::free_slice() noexcept {
  std::unique_ptr<ScopeIndex> index = take_unused();
  if (index == nullptr) return false;
  if (index->free_slice(options_.free_slice_blocks)) {
    add_unused(std::move(index));
    return true;
  }
  MutexLock lock(indexes_mutex_);
  std::erase(indexes_, index.get());
  return true;
}

// Without memory for the task, puts that find no room free, and the next purge tries again.
void MemoryStore::Core::free_behind() noexcept {
  if (freeing_.exchange(true)) return;
  const Status posted = contain([this] {
    executor_.post([weak = weak_from_this()] {
      if (const std::shared_ptr<Core> core = weak.lock()) core->run_slice();
    });
  });
  if (!posted) freeing_ = false;
}

void MemoryStore::Core::run_slice() {
  if (stopping_) return;
  const bool more = free_slice();
  if (more && options_.free_pause > Duration::zero()) {
    clock_.sleep_until(clock_.now() + options_.free_pause);
  }
  freeing_ = false;
  if (more) free_behind();
}

// --- scopes ----------------------------------------------------------------------

Status MemoryStore::Core::purge_scope(const ScopeId& scope, bool for_good) {
  IndexPtr index;  // may be the last use, which ends after the lock
  MutexLock lock(scopes_mutex_);
  if (for_good) fenced_.set(scope, true);
  const auto found = scopes_.find(scope);
  if (found == scopes_.end()) return {};
  index = std::move(found->second);
  index->close();
  scopes_.erase(found);
  return {};
}

void MemoryStore::Core::describe_scope(const ScopeId& scope, const std::string& description) {
  MutexLock lock(scopes_mutex_);
  descriptions_.set(scope, description.substr(0, kDescriptionBytesMax));
}

Status MemoryStore::Core::hold_scope(const ScopeId& scope, const std::string& holder,
                                     Duration lease) {
  const Time now = clock_.now();
  MutexLock lock(scopes_mutex_);
  return holds_.hold(scope, holder, lease, now);
}

std::uint64_t MemoryStore::Core::remove_all() {
  std::unordered_map<ScopeId, IndexPtr> all;
  std::uint64_t removed = 0;
  MutexLock lock(scopes_mutex_);
  all.swap(scopes_);
  for (auto& [scope, index] : all) {
    index->close();
    removed += index->blocks();
  }
  return removed;
}

StoreStats MemoryStore::Core::stats() {
  StoreStats stats;
  stats.budget_bytes = options_.budget_bytes;
  stats.bytes_to_free = evicted_in_use_bytes_;
  stats.evicted_blocks = evicted_blocks_;
  stats.refused_late_puts = refused_late_puts_;
  MutexLock lock(indexes_mutex_);
  for (const ScopeIndex* index : indexes_) {
    if (index->closed()) {
      stats.bytes_to_free += index->held_bytes();
      ++stats.unfinished_purges;
    } else {
      stats.blocks += index->blocks();
      stats.bytes += index->bytes();
    }
  }
  return stats;
}

std::vector<ScopeUsage> MemoryStore::Core::list_scopes() {
  std::map<ScopeId, ScopeUsage> usages;
  const Time now = clock_.now();
  MutexLock lock(scopes_mutex_);
  for (const auto& [scope, index] : scopes_) {
    if (index->blocks() == 0) continue;
    usages[scope].blocks = index->blocks();
    usages[scope].bytes = index->bytes();
  }
  for (auto& [scope, holders] : holds_.holders(now)) usages[scope].holders = std::move(holders);
  std::vector<ScopeUsage> sorted;
  for (auto& [scope, usage] : usages) {
    usage.scope = scope;
    const std::string* description = descriptions_.find(scope);
    if (description != nullptr) usage.description = *description;
    sorted.push_back(std::move(usage));
  }
  return sorted;
}

// --- the interface -----------------------------------------------------------------

namespace {

Result<GetValue> copy_out(Entry& entry, const GetItem& item) {
  const std::uint64_t wanted = total_bytes(item.payload);
  if (entry.header.payload_bytes != wanted) {
    return other_length(item.key, entry.header.payload_bytes, wanted);
  }
  const std::uint64_t checksum = scatter({entry.payload(), wanted}, item.payload, item.checksum);
  return GetValue{entry.header, checksum};
}

}  // namespace

MemoryStore::MemoryStore(const MemoryStoreOptions& options, Clock& clock, Executor& executor)
    : core_(std::make_shared<Core>(options, clock, executor)) {}

MemoryStore::~MemoryStore() { core_->stop(); }

std::vector<Status> MemoryStore::put(std::span<const PutItem> items) {
  std::vector<Status> statuses;
  statuses.reserve(items.size());
  for (const PutItem& item : items) statuses.push_back(core_->put(item));
  return statuses;
}

std::vector<Result<GetValue>> MemoryStore::get(std::span<const GetItem> items) {
  std::vector<Result<GetValue>> values;
  values.reserve(items.size());
  for (const GetItem& item : items) {
    const std::shared_ptr<ScopeIndex> index = core_->find_index(item.key.scope);
    Entry* entry = index == nullptr ? nullptr : index->find(item.key.shard, item.key.block);
    if (entry == nullptr) {
      values.push_back(fail(Code::kMiss, "not in the store: " + item.key.to_string()));
      continue;
    }
    values.push_back(contain([&] { return copy_out(*entry, item); }));
    core_->drop(entry);
  }
  return values;
}

Result<std::size_t> MemoryStore::hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                            std::span<const BlockHash> blocks) {
  const std::shared_ptr<ScopeIndex> index = core_->find_index(scope);
  if (index == nullptr) return 0;
  std::size_t hits = shards.empty() ? 0 : blocks.size();
  for (const Shard& shard : shards) hits = index->hit_prefix(shard, blocks.first(hits));
  return hits;
}

Status MemoryStore::remove(const Key& key) {
  core_->remove(key);
  return {};
}

Status MemoryStore::purge_scope(const ScopeId& scope, bool for_good) {
  return core_->purge_scope(scope, for_good);
}

void MemoryStore::describe_scope(const ScopeId& scope, const std::string& description) {
  core_->describe_scope(scope, description);
}

Status MemoryStore::hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) {
  return core_->hold_scope(scope, holder, lease);
}

Result<std::uint64_t> MemoryStore::remove_all() { return core_->remove_all(); }

Result<StoreStats> MemoryStore::stats() { return core_->stats(); }

Result<std::vector<ScopeUsage>> MemoryStore::list_scopes() { return core_->list_scopes(); }

}  // namespace newmoon
