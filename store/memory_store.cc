#include "store/memory_store.h"

#include <algorithm>
#include <deque>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>

#include "store/eviction_queue.h"
#include "store/recent_map.h"
#include "store/scope_index.h"
#include "store/slab_pool.h"

namespace newmoon {
namespace {

constexpr std::size_t kDescriptionBytesMax = 1024;

Status check_put(const PutItem& item) {
  const ValueHeader& header = item.header;
  const ValueHeader named = make_header(item.key, header.layout_id, total_bytes(item.payload));
  if (header.payload_bytes != named.payload_bytes) {
    return fail(Code::kBadRequest, "put: header says " + std::to_string(header.payload_bytes) +
                                       " payload bytes, the fragments hold " +
                                       std::to_string(named.payload_bytes));
  }
  if (header.scope_id != named.scope_id || header.shard != named.shard ||
      header.block_hash != named.block_hash || header.block_hash_bytes != named.block_hash_bytes) {
    return fail(Code::kBadRequest, "put: header is not of key " + item.key.to_string());
  }
  return {};
}

}  // namespace

// Lock order: a partition's, then the queue's. All others are leaves and alone.
class MemoryStore::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const MemoryStoreOptions& options, Clock& clock, Executor& executor)
      : options_(options),
        clock_(clock),
        executor_(executor),
        pool_(options.budget_bytes),
        fenced_(options.fenced_scopes_max),
        descriptions_(options.descriptions_max) {}

  using IndexPtr = std::shared_ptr<ScopeIndex>;

  // The scope's values; nullptr: none.
  IndexPtr find_index(const ScopeId& scope) {
    MutexLock lock(scopes_mutex_);
    const auto found = scopes_.find(scope);
    return found == scopes_.end() ? nullptr : found->second;
  }

  Status put(const PutItem& item);
  void drop(std::span<Entry* const> entries);
  void drop(Entry* entry) { drop({&entry, 1}); }
  Status purge_scope(const ScopeId& scope, bool for_good);
  void describe_scope(const ScopeId& scope, const std::string& description);
  std::uint64_t remove_all();
  StoreStats stats();
  std::vector<ScopeUsage> list_scopes();
  void stop_freeing() { stopping_ = true; }

 private:
  Result<IndexPtr> index_for_put(const ScopeId& scope, bool create);
  Result<Entry*> make_entry(const PutItem& item);
  std::optional<SlabPool::Slot> allocate(std::size_t bytes);
  bool evict_one();
  void forget_if_empty(const IndexPtr& index, const ScopeId& scope);
  void retire(IndexPtr index);
  IndexPtr next_retired();
  bool free_slice();
  void free_behind();
  void run_slice();

  const MemoryStoreOptions options_;
  Clock& clock_;
  Executor& executor_;
  SlabPool pool_;
  EvictionQueue queue_;
  std::atomic<std::uint64_t> detached_bytes_{0};  // out of their index, not yet freed
  std::atomic<std::uint64_t> evicted_blocks_{0};
  std::atomic<std::uint64_t> refused_late_puts_{0};
  std::atomic<bool> freeing_{false};  // a task is queued or runs
  std::atomic<bool> stopping_{false};

  Mutex scopes_mutex_;
  std::unordered_map<ScopeId, IndexPtr> scopes_ NM_GUARDED_BY(scopes_mutex_);
  RecentMap<ScopeId, bool> fenced_ NM_GUARDED_BY(scopes_mutex_);
  RecentMap<ScopeId, std::string> descriptions_ NM_GUARDED_BY(scopes_mutex_);

  Mutex retired_mutex_;
  std::deque<IndexPtr> retired_ NM_GUARDED_BY(retired_mutex_);
};

// --- put ---------------------------------------------------------------------

Status MemoryStore::Core::put(const PutItem& item) {
  if (Status checked = check_put(item); !checked) return checked;
  const Result<IndexPtr> before = index_for_put(item.key.scope, false);
  if (!before) return std::unexpected(before.error());
  if (*before != nullptr && (*before)->contains(item.key.shard, item.key.block)) return {};
  const Result<Entry*> entry = make_entry(item);
  if (!entry) return std::unexpected(entry.error());
  while (true) {
    const Result<IndexPtr> index = index_for_put(item.key.scope, true);
    const auto inserted = index ? (*index)->insert(*entry, queue_) : ScopeIndex::Insert::kClosed;
    if (inserted == ScopeIndex::Insert::kDone) return {};
    if (index && inserted == ScopeIndex::Insert::kClosed) continue;  // purged: try its next index
    pool_.free({{{reinterpret_cast<std::uint8_t*>(*entry), (*entry)->slab}}});
    if (!index) return std::unexpected(index.error());
    return {};
  }
}

// kFenced, or the scope's index; without one a new one (`create`) or nullptr.
Result<MemoryStore::Core::IndexPtr> MemoryStore::Core::index_for_put(const ScopeId& scope,
                                                                     bool create) {
  MutexLock lock(scopes_mutex_);
  if (fenced_.find(scope) != nullptr) {
    ++refused_late_puts_;
    return fail(Code::kFenced, "scope " + scope.hex() + " was purged for good: drop the put");
  }
  const auto found = scopes_.find(scope);
  if (found != scopes_.end()) return found->second;
  return create ? scopes_.emplace(scope, std::make_shared<ScopeIndex>()).first->second : nullptr;
}

// Filled with the bytes, of no index yet.
Result<Entry*> MemoryStore::Core::make_entry(const PutItem& item) {
  const std::size_t bytes = kEntryBytes + item.header.payload_bytes;
  if (!pool_.can_ever_hold(bytes)) {
    return fail(Code::kBadRequest, "put: a value of " + std::to_string(bytes) +
                                       " bytes is larger than the store's budget of " +
                                       std::to_string(options_.budget_bytes) +
                                       ": raise --store-bytes");
  }
  const std::optional<SlabPool::Slot> slot = allocate(bytes);
  if (!slot) return fail(Code::kBusy, "memory store: no room now, all bytes are in use");
  Entry* entry = new (slot->data) Entry;
  entry->slab = slot->slab;
  entry->header = item.header;
  const std::uint64_t checksum =
      gather(item.payload, {entry->payload(), item.header.payload_bytes}, item.checksum);
  if (item.checksum) {
    entry->header.checksum = checksum;
    entry->header.flags |= ValueHeader::kChecksummed;
  }
  return entry;
}

// What was purged goes before what is still of use.
std::optional<SlabPool::Slot> MemoryStore::Core::allocate(std::size_t bytes) {
  while (true) {
    if (std::optional<SlabPool::Slot> slot = pool_.allocate(bytes)) return slot;
    if (!free_slice() && !evict_one()) return std::nullopt;
  }
}

// --- eviction and freeing ------------------------------------------------------

bool MemoryStore::Core::evict_one() {
  const EvictionQueue::Victim victim = queue_.pop();
  if (victim.entry == nullptr) return false;
  if (victim.index->remove(victim.entry)) {
    ++evicted_blocks_;
    detached_bytes_ += victim.entry->bytes();
    forget_if_empty(victim.index, ScopeId{victim.entry->header.scope_id});
    drop(victim.entry);
  }
  drop(victim.entry);
  return true;
}

void MemoryStore::Core::forget_if_empty(const IndexPtr& index, const ScopeId& scope) {
  if (index->blocks() > 0) return;
  {
    MutexLock lock(scopes_mutex_);
    const auto found = scopes_.find(scope);
    if (found == scopes_.end() || found->second != index || index->blocks() > 0) return;
    scopes_.erase(found);
  }
  // Through the same door as a purged one: an insert may be on its way into it.
  retire(index);
}

// Gives a reference back; whoever gives the last one frees. The entries are out
// of their index or about to be, so that nobody can take a new reference.
void MemoryStore::Core::drop(std::span<Entry* const> entries) {
  std::vector<SlabPool::Slot> slots;
  slots.reserve(entries.size());
  for (Entry* entry : entries) {
    if (entry->references.fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
    detached_bytes_ -= entry->bytes();
    slots.push_back({reinterpret_cast<std::uint8_t*>(entry), entry->slab});
  }
  if (!slots.empty()) pool_.free(slots);
}

void MemoryStore::Core::retire(IndexPtr index) {
  index->close();
  {
    MutexLock lock(retired_mutex_);
    retired_.push_back(std::move(index));
  }
  free_behind();
}

MemoryStore::Core::IndexPtr MemoryStore::Core::next_retired() {
  MutexLock lock(retired_mutex_);
  return retired_.empty() ? nullptr : retired_.front();
}

// False: nothing was left to free.
bool MemoryStore::Core::free_slice() {
  const IndexPtr index = next_retired();
  if (index == nullptr) return false;
  const std::vector<Entry*> entries = index->take(options_.free_slice_blocks);
  if (entries.empty()) {
    MutexLock lock(retired_mutex_);
    if (!retired_.empty() && retired_.front() == index) retired_.pop_front();
    return true;
  }
  for (const Entry* entry : entries) detached_bytes_ += entry->bytes();
  queue_.remove(entries);
  drop(entries);
  return true;
}

void MemoryStore::Core::free_behind() {
  if (freeing_.exchange(true)) return;
  executor_.post([weak = weak_from_this()] {
    if (const std::shared_ptr<Core> core = weak.lock()) core->run_slice();
  });
}

void MemoryStore::Core::run_slice() {
  if (stopping_) return;
  const bool more = free_slice();
  if (more && options_.free_pause > Duration::zero()) {
    clock_.sleep_until(clock_.now() + options_.free_pause);
  }
  freeing_ = false;
  if (more || next_retired() != nullptr) free_behind();
}

// --- scopes ----------------------------------------------------------------------

Status MemoryStore::Core::purge_scope(const ScopeId& scope, bool for_good) {
  IndexPtr index;
  {
    MutexLock lock(scopes_mutex_);
    if (for_good) fenced_.set(scope, true);
    const auto found = scopes_.find(scope);
    if (found == scopes_.end()) return {};
    index = std::move(found->second);
    scopes_.erase(found);
  }
  retire(std::move(index));
  return {};
}

void MemoryStore::Core::describe_scope(const ScopeId& scope, const std::string& description) {
  MutexLock lock(scopes_mutex_);
  descriptions_.set(scope, description.substr(0, kDescriptionBytesMax));
}

std::uint64_t MemoryStore::Core::remove_all() {
  std::unordered_map<ScopeId, IndexPtr> all;
  {
    MutexLock lock(scopes_mutex_);
    all.swap(scopes_);
  }
  std::uint64_t removed = 0;
  for (auto& [scope, index] : all) {
    removed += index->blocks();
    retire(std::move(index));
  }
  return removed;
}

StoreStats MemoryStore::Core::stats() {
  StoreStats stats;
  for (const ScopeUsage& usage : list_scopes()) {
    stats.blocks += usage.blocks;
    stats.bytes += usage.bytes;
  }
  stats.bytes_to_free = detached_bytes_;
  {
    MutexLock lock(retired_mutex_);
    for (const IndexPtr& index : retired_) stats.bytes_to_free += index->bytes();
  }
  stats.budget_bytes = options_.budget_bytes;
  stats.evicted_blocks = evicted_blocks_;
  stats.refused_late_puts = refused_late_puts_;
  return stats;
}

std::vector<ScopeUsage> MemoryStore::Core::list_scopes() {
  std::vector<ScopeUsage> usages;
  MutexLock lock(scopes_mutex_);
  for (const auto& [scope, index] : scopes_) {
    if (index->blocks() == 0) continue;
    const std::string* description = descriptions_.find(scope);
    usages.push_back(
        {scope, description == nullptr ? "" : *description, index->blocks(), index->bytes()});
  }
  std::ranges::sort(usages, {}, &ScopeUsage::scope);
  return usages;
}

// --- the interface -----------------------------------------------------------------

namespace {

Result<GetValue> copy_out(Entry& entry, const GetItem& item) {
  const std::uint64_t wanted = total_bytes(item.payload);
  if (entry.header.payload_bytes != wanted) {
    return fail(Code::kCorrupt, "stored value of " + item.key.to_string() + " has " +
                                    std::to_string(entry.header.payload_bytes) +
                                    " payload bytes, not " + std::to_string(wanted));
  }
  const std::uint64_t checksum = scatter({entry.payload(), wanted}, item.payload, item.checksum);
  return GetValue{entry.header, checksum};
}

}  // namespace

MemoryStore::MemoryStore(const MemoryStoreOptions& options, Clock& clock, Executor& executor)
    : core_(std::make_shared<Core>(options, clock, executor)) {}

MemoryStore::~MemoryStore() { core_->stop_freeing(); }

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
    values.push_back(copy_out(*entry, item));
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

Status MemoryStore::purge_scope(const ScopeId& scope, bool for_good) {
  return core_->purge_scope(scope, for_good);
}

void MemoryStore::describe_scope(const ScopeId& scope, const std::string& description) {
  core_->describe_scope(scope, description);
}

Result<std::uint64_t> MemoryStore::remove_all() { return core_->remove_all(); }

Result<StoreStats> MemoryStore::stats() { return core_->stats(); }

Result<std::vector<ScopeUsage>> MemoryStore::list_scopes() { return core_->list_scopes(); }

}  // namespace newmoon
