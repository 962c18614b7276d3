// A store that is left alone while it does not answer, so that nobody waits for it: a
// lookup is then a miss, a put kBusy (drop the work and go on), all else kUnavailable, at
// once and without touching the backend. Purges for good are made up for once it is back;
// others are their caller's to repeat, for the scope may be in use by then.
//
// What it takes to be left alone and to come back: store/circuit_breaker.h. Pings come
// from probe(), which somebody must call now and then: start_probing() does on a thread of
// its own; tests and the simulator call it as they like. Any thread may call any method.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "base/ticker.h"
#include "store/circuit_breaker.h"
#include "store/kv_store.h"

namespace newmoon {

class CircuitBreakerStore final : public KvStore {
 public:
  static constexpr Duration kProbeInterval = std::chrono::milliseconds(500);
  static constexpr std::size_t kOwedPurgesMax = 4096;  // the oldest are left to eviction

  // `name`: of the backend, as people know it. `clock` must outlive the store.
  CircuitBreakerStore(std::unique_ptr<KvStore> inner, std::string name, Clock& clock,
                      const CircuitBreaker::Options& options = {});

  // Pings the backend once. Blocks as long as the backend's ping() may; calls made
  // meanwhile do not wait for it. Then the purges that are owed, if the backend takes
  // calls. Not twice at the same time.
  void probe();
  // probe() every `interval`, for as long as the store lives.
  void start_probing(Duration interval = kProbeInterval);

  CircuitBreaker::Figures figures() const { return breaker_.figures(); }

  std::size_t front_room_for(std::uint64_t payload_bytes) const override {
    return inner_->front_room_for(payload_bytes);
  }
  void register_memory(std::shared_ptr<const void> owner, ByteView memory) override {
    inner_->register_memory(std::move(owner), memory);
  }
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
  // The backend's, and what the breaker did. An error while the backend is left alone: its
  // figures are not known then, least of all that they are 0.
  Result<StoreStats> stats() override;
  std::uint64_t calls_without_backend() const override { return figures().refused_calls; }
  Result<std::vector<ScopeUsage>> list_scopes() override;
  bool reads_are_atomic() const override { return inner_->reads_are_atomic(); }

 private:
  template <class Work>
  auto call(Work work) -> std::invoke_result_t<Work>;
  void owe_purge(const ScopeId& scope);
  void make_up_for_purges();

  const std::unique_ptr<KvStore> inner_;
  Clock& clock_;
  CircuitBreaker breaker_;
  Mutex mutex_;
  std::deque<ScopeId> owed_purges_ NM_GUARDED_BY(mutex_);  // for good
  std::unique_ptr<Ticker> ticker_;                         // ends before what it probes
};

}  // namespace newmoon
