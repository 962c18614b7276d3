// The store that all replicas of a world share, as one process sees it: a production
// KvStore underneath, and in front of it time, faults and witnesses.
#pragma once

#include <cstdint>
#include <functional>
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
  SharedStore(Kernel& k, KvStore& inner_store, KvStore& true_store, Verdict& v)
      : kernel(k), inner(inner_store), truth(true_store), verdict(v) {}

  Kernel& kernel;
  KvStore& inner;
  KvStore& truth;  // what inner stands on: for oracles, who must not be lied to
  Verdict& verdict;
  StoreFaults faults;
  // Every key anyone put, in the order of the first put, and who put it.
  std::vector<Key> keys;
  std::unordered_map<std::string, std::size_t> putter;
  bool was_slow = false;  // some call: every run has at least one
};

class SimStore final : public KvStore {
 public:
  // `replica`: whose view it is. `memory`: the rank's, for the ledger; null for a
  // process without one. `epoch`: the replica's, now.
  SimStore(SharedStore& shared, std::size_t replica, const Process& process, SimMemory* memory,
           std::function<Epoch()> epoch);

  // Called before anything else in each call.
  std::function<void()> on_call;
  // Called first in each put and get, with an address in each item's memory.
  std::function<void(std::span<const std::uint8_t* const> addresses)> on_transfer;
  // Called as values are stored, after a value was delivered, and before all go.
  std::function<void()> on_put;
  std::function<void(const Key&)> on_loaded;
  std::function<void()> on_remove_all;
  // Calls that delivered a changed value as the first bad one of a get.
  std::uint64_t corrupt_delivered() const { return corrupt_delivered_; }

  std::vector<Status> put(std::span<const PutItem> items) override;
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override;
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override;
  Status remove(const Key& key) override;
  Status purge_scope(const ScopeId& scope, bool for_good) override;
  void describe_scope(const ScopeId& scope, const std::string& description) override;
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override;
  Result<std::uint64_t> remove_all() override;
  Status ping() override;
  Result<StoreStats> stats() override;
  Result<std::vector<ScopeUsage>> list_scopes() override;
  bool reads_are_atomic() const override { return false; }

 private:
  template <class Item>
  void announce(std::span<const Item> items);
  Status begin_call();
  void take_time();
  bool draw(unsigned percent);
  bool fault(unsigned percent);
  Status put_one(const PutItem& item, const Bytes* staged);
  struct Delivery {
    Result<GetValue> value;
    bool changed = false;  // not the bytes that were put under the key
  };
  Delivery get_one(const GetItem& item, bool late);
  Delivery read(const GetItem& item, MutableByteView to);
  const Key* other_key(const Key& key);

  SharedStore& shared_;
  const std::size_t replica_;
  const Process& process_;
  SimMemory* const memory_;
  const std::function<Epoch()> epoch_;
  std::uint64_t corrupt_delivered_ = 0;
};

}  // namespace newmoon::sim
