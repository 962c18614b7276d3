// The store that all replicas of a world share, as one process sees it: a production
// KvStore underneath, and in front of it time, faults and witnesses.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/block_memory.h"
#include "sim/kernel.h"
#include "sim/network.h"
#include "sim/verdict.h"
#include "store/kv_store.h"

namespace newmoon::sim {

struct StoreFaults {
  Duration call_max{std::chrono::microseconds(400)};
  Duration slow_max{std::chrono::milliseconds(60)};
  unsigned slow_percent = 0;
  unsigned call_fail_percent = 0;  // the whole call
  unsigned item_fail_percent = 0;  // one item of it
  unsigned corrupt_percent = 0;    // a get delivers changed bytes
  unsigned misdirect_percent = 0;  // a get delivers another key's value
  unsigned forget_percent = 0;     // a get does not find what is there
};

// What all processes' views have in common.
struct SharedStore {
  SharedStore(Kernel& k, KvStore& inner_store, Verdict& v)
      : kernel(k), inner(inner_store), verdict(v) {}

  Kernel& kernel;
  KvStore& inner;
  Verdict& verdict;
  StoreFaults faults;
  // Every key anyone put, in the order of the first put, and who put it.
  std::vector<Key> keys;
  std::unordered_map<std::string, std::size_t> putter;
  std::set<ScopeId> purged;  // for good
  std::uint64_t corrupt_delivered = 0;
};

class SimStore final : public KvStore {
 public:
  // `replica`: whose view it is. `memory`: the rank's, for the ledger; null for a
  // process without one. `epoch`: the replica's, now.
  SimStore(SharedStore& shared, std::size_t replica, const Process& process, SimMemory* memory,
           std::function<Epoch()> epoch);

  // Called before anything else in each call.
  std::function<void()> on_call;
  // Called when a scope is purged, before it is.
  std::function<void(const ScopeId& scope, bool for_good)> on_purge;
  std::uint64_t call_count() const { return call_count_; }
  std::size_t puts_running() const { return puts_running_; }
  std::uint64_t corrupt_delivered() const { return corrupt_delivered_; }

  std::vector<Status> put(std::span<const PutItem> items) override;
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override;
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override;
  Status purge_scope(const ScopeId& scope, bool for_good) override;
  void describe_scope(const ScopeId& scope, const std::string& description) override;
  Result<std::uint64_t> remove_all() override;
  Result<StoreStats> stats() override;
  Result<std::vector<ScopeUsage>> list_scopes() override;
  bool reads_are_atomic() const override { return false; }

 private:
  Status begin_call();
  void take_time();
  bool draw(unsigned percent);
  Status put_one(const PutItem& item, const Bytes* staged);
  Result<GetValue> get_one(const GetItem& item, bool late);
  Result<GetValue> read(const GetItem& item, MutableByteView to);
  const Key* other_key(const Key& key);

  SharedStore& shared_;
  const std::size_t replica_;
  const Process& process_;
  SimMemory* const memory_;
  const std::function<Epoch()> epoch_;
  std::uint64_t call_count_ = 0;
  std::size_t puts_running_ = 0;
  std::uint64_t corrupt_delivered_ = 0;
};

}  // namespace newmoon::sim
