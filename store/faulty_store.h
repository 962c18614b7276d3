// A store that goes wrong as told (store/fault_rule.h), around one that does not:
// for tests, the simulator and `newmoon rollout --faults`. Deterministic, given its
// clock and randomness. Any thread may call; calls it delays or holds wait on the
// caller's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/thread_annotations.h"
#include "store/fault_rule.h"
#include "store/kv_store.h"

namespace newmoon {

class FaultyStore final : public KvStore {
 public:
  // All three must outlive it. `random` is called under a lock.
  FaultyStore(KvStore& inner, std::vector<FaultRule> rules, Clock& clock, Random& random);
  ~FaultyStore() override;  // late puts that are not due yet are lost

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
  bool reads_are_atomic() const override { return inner_.reads_are_atomic(); }

  void add_rule(FaultRule rule);
  void clear_rules();
  // Lets go of the calls that wait at `hold`, and of all that come to it later.
  void release(const std::string& hold);
  // How many calls wait there now.
  std::size_t waiting_at(const std::string& hold) const;
  // How often a rule applied so far, over all rules, removed ones included.
  std::uint64_t faults() const;
  // From here rules that are `marked` apply, and count anew.
  void mark();

 private:
  struct Armed {
    FaultRule rule;
    std::uint64_t calls = 0;  // that matched
    std::uint64_t fired = 0;
  };
  struct CapturedPut;
  // The rules that apply to each of a call's items.
  using Plan = std::vector<std::vector<FaultRule>>;

  template <class Item>
  Plan plan(FaultRule::Op op, std::span<const Item> items);
  Plan plan_ranks(FaultRule::Op op, std::span<const std::uint16_t> ranks);
  bool fires(Armed& armed) NM_REQUIRES(mutex_);
  void wait(const Plan& plan, FaultRule::When when);
  void wait_at(const std::string& hold);
  CapturedPut capture(const PutItem& item, std::span<const FaultRule> rules);
  void damage(const GetItem& item, std::span<const FaultRule> rules, const Bytes& tail,
              GetValue& value);
  void store_late_puts();
  std::uint64_t draw(std::uint64_t bound);

  KvStore& inner_;
  Clock& clock_;
  Random& random_;
  mutable Mutex mutex_;
  std::vector<Armed> rules_ NM_GUARDED_BY(mutex_);
  bool marked_ NM_GUARDED_BY(mutex_) = false;
  std::uint64_t faults_ NM_GUARDED_BY(mutex_) = 0;
  std::set<std::string> released_ NM_GUARDED_BY(mutex_);
  std::map<std::string, std::size_t> waiting_ NM_GUARDED_BY(mutex_);
  std::multimap<Time, CapturedPut> late_puts_ NM_GUARDED_BY(mutex_);  // by when they are due
};

}  // namespace newmoon
