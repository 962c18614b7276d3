// Eyes of `newmoon seed`: what the production objects log, what goes over the wire
// and what the store is told, in the order in which it happened.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_annotations.h"
#include "base/transport.h"
#include "store/kv_store.h"

namespace newmoon {

// While one lives, it is the sink of the log, at the debug level. Any thread may call.
class SeedTrace {
 public:
  struct Line {
    std::string level;      // "debug", ...; "" for what the wrappers saw
    std::string component;  // of the log; "wire" and "store" for what the wrappers saw
    std::string text;
  };

  SeedTrace();
  ~SeedTrace();
  SeedTrace(const SeedTrace&) = delete;
  SeedTrace& operator=(const SeedTrace&) = delete;

  void add(std::string_view component, std::string text, std::string_view level = "");
  std::vector<Line> take();  // since the last call

 private:
  Mutex mutex_;
  std::vector<Line> lines_ NM_GUARDED_BY(mutex_);
};

// "6e6d2e7265736574 | 0000000000000001 | 83..."
std::string frames_hex(const Frames& frames);

// Around the client's transport to the ranks. While `broken`, nothing can be sent.
class TracedTransport final : public ClientTransport {
 public:
  TracedTransport(std::unique_ptr<ClientTransport> inner, SeedTrace& trace,
                  const std::atomic<bool>& broken)
      : inner_(std::move(inner)), trace_(trace), broken_(broken) {}

  std::size_t peer_count() const override { return inner_->peer_count(); }
  Status send(std::size_t peer, const Frames& frames) override;
  std::optional<std::pair<std::size_t, Frames>> receive() override;
  bool wait(Time deadline) override { return inner_->wait(deadline); }
  void reopen(std::size_t peer) override { inner_->reopen(peer); }

 private:
  const std::unique_ptr<ClientTransport> inner_;
  SeedTrace& trace_;
  const std::atomic<bool>& broken_;
};

// Around the store. remove_all() can fail as with a dead master, or answer well and
// leave everything, as upstream's does with objects that are still being written.
class TracedStore final : public KvStore {
 public:
  enum class RemoveAll : std::uint8_t { kWorks, kFails, kLeavesAll };

  TracedStore(KvStore& inner, SeedTrace& trace) : inner_(inner), trace_(trace) {}

  std::atomic<RemoveAll> remove_all_mode = RemoveAll::kWorks;

  std::vector<Status> put(std::span<const PutItem> items) override { return inner_.put(items); }
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override {
    return inner_.get(items);
  }
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override {
    return inner_.hit_prefix(scope, shards, blocks);
  }
  Status remove(const Key& key) override { return inner_.remove(key); }
  Status purge_scope(const ScopeId& scope, bool for_good) override;
  void describe_scope(const ScopeId& scope, const std::string& description) override {
    inner_.describe_scope(scope, description);
  }
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override {
    return inner_.hold_scope(scope, holder, lease);
  }
  Result<std::uint64_t> remove_all() override;
  Status ping() override { return inner_.ping(); }
  Result<StoreStats> stats() override { return inner_.stats(); }
  Result<std::vector<ScopeUsage>> list_scopes() override { return inner_.list_scopes(); }
  bool reads_are_atomic() const override { return inner_.reads_are_atomic(); }

 private:
  KvStore& inner_;
  SeedTrace& trace_;
};

}  // namespace newmoon
