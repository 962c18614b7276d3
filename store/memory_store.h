// The embedded default: values in the memory of this process, under a byte budget.
// Any thread may call; no call waits for anything but short locks, and bytes are
// copied once, outside of them.
//
// Budget: fixed at start. It covers values with their headers and bookkeeping (a
// 64-byte value takes 256 bytes), in slots that stay mapped; bytes purged but not
// yet freed count in it. The hash index, about 11 bytes a value, is outside.
// Eviction: approximately least recently used, over all scopes (second chance).
// Purge: constant time whatever the number of values; they are freed behind, in
// small slices with a pause after each, and by puts that find no room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/executor.h"
#include "store/kv_store.h"

namespace newmoon {

struct MemoryStoreOptions {
  std::uint64_t budget_bytes = 0;
  std::string_view budget_name = "--store-bytes";  // what sets it, for messages
  // Freeing: so many values at a time, then a pause (none: one after the other).
  std::size_t free_slice_blocks = 256;
  Duration free_pause = std::chrono::microseconds(200);
  // Scopes purged for good whose late puts are refused; over this many the oldest
  // is forgotten. A put that is later still costs its memory until it is evicted;
  // nobody can find it, since the scope is unique.
  std::size_t fenced_scopes_max = 65536;
  // Scopes whose description is kept, the latest ones; each cut to 1,024 bytes.
  std::size_t descriptions_max = 4096;
  // Leases of hold_scope(), over all scopes.
  std::size_t holds_max = 65536;
};

class MemoryStore final : public KvStore {
 public:
  // `executor` frees; it and `clock` must outlive the store and its queued tasks.
  MemoryStore(const MemoryStoreOptions& options, Clock& clock, Executor& executor);
  ~MemoryStore() override;

  // kBadRequest, besides the contract's: larger than the whole budget.
  std::vector<Status> put(std::span<const PutItem> items) override;
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override;
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override;
  Status remove(const Key& key) override;
  Status purge_scope(const ScopeId& scope, bool for_good) override;
  void describe_scope(const ScopeId& scope, const std::string& description) override;
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override;
  Result<std::uint64_t> remove_all() override;
  Status ping() override { return {}; }
  Result<StoreStats> stats() override;
  Result<std::vector<ScopeUsage>> list_scopes() override;
  bool reads_are_atomic() const override { return true; }

 private:
  class Core;
  std::shared_ptr<Core> core_;  // shared with the freeing task
};

}  // namespace newmoon
