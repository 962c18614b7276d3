// A KvStore on Mooncake: values spread over the memory that the store's clients lend, found
// by a master that all of them share. Needs the wheel, Python 3.11 and a master that runs
// (store/mooncake/config.h, store/mooncake/plugin_loader.h).
//
// Any thread may call. Every call ends within the timeout: what blocks runs on workers, and a
// caller that has waited long enough gets kDeadline while the call ends behind. A value goes
// through staging memory of the store's own as one contiguous buffer, header and payload, unless
// a put finds its payload in registered memory or a get its value in memory that this process
// lends (store/mooncake/lent_search.h). Batches are cut into transfers that overlap.
//
// Reads are not atomic with eviction: values carry checksums, and callers check them.
// Not to be used after a fork.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "store/kv_store.h"
#include "store/mooncake/call_pool.h"
#include "store/mooncake/client.h"
#include "store/mooncake/mapped_memory.h"
#include "store/mooncake/master_http.h"
#include "store/mooncake/scope_gate.h"
#include "store/mooncake/staging_arena.h"
#include "store/mooncake/transfer.h"
#include "store/recent_map.h"

namespace newmoon {

class Lookup;

struct MooncakeOptions {
  Duration timeout = std::chrono::seconds(1);        // of a call
  Duration start_timeout = std::chrono::seconds(5);  // of open()
  Duration stop_timeout = std::chrono::seconds(5);   // of the destructor
  // Staging memory, also the most a value may have: the configuration's local_buffer_size,
  // but no more than this. The wheel gets no buffer of its own, since it would not be used.
  std::uint64_t staging_bytes_max = 256 << 20;
  std::size_t workers = 4;  // calls into the wheel at a time
  // When a purged scope is purged once more: a little after the master's
  // put_start_discard_timeout_sec and put_start_release_timeout_sec.
  std::vector<Duration> recheck_delays = {std::chrono::seconds(40), std::chrono::seconds(630)};
  std::function<std::int64_t()> unix_time_s = newmoon::unix_time_s;
};

class MooncakeStore final : public KvStore {
 public:
  // Joins the store. `clock`: SystemClock, must outlive this and the calls that end after it.
  // kUnavailable: no master, no wheel, no Python; one line that says what to do.
  // kBadRequest: Mooncake does not take the configuration.
  static Result<std::unique_ptr<MooncakeStore>> open(const MooncakeConfig& config, Clock& clock,
                                                     const MooncakeOptions& options);
  // The same with a client of the caller's making, not set up yet.
  using MakeClient = std::function<Result<std::unique_ptr<MooncakeClient>>()>;
  static Result<std::unique_ptr<MooncakeStore>> open_with(const MakeClient& make_client,
                                                          const MooncakeConfig& config,
                                                          Clock& clock,
                                                          const MooncakeOptions& options);
  // Leaves the store, which takes 1 to 2.3 s. What this process lent goes with its values.
  ~MooncakeStore() override;

  std::size_t front_room_for(std::uint64_t payload_bytes) const override;
  void register_memory(std::shared_ptr<const void> owner, ByteView memory) override;
  // kBusy, besides the contract's: Mooncake said yes but nothing can be read, since somebody
  // is writing the key or has died over it; or the scope is still being purged.
  std::vector<Status> put(std::span<const PutItem> items) override;
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override;
  // What is found is leased by the master's lease time, 10 s by default.
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override;
  Status remove(const Key& key) override;
  // The values go behind: StoreStats::unfinished_purges. Unfindable at once by this process.
  Status purge_scope(const ScopeId& scope, bool for_good) override;
  // Others see it a little later; waits for nothing.
  void describe_scope(const ScopeId& scope, const std::string& description) override;
  // In steps of a minute, by the clocks of the machines.
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override;
  // Empties the whole store, other programs' keys included. Success: the master has counted
  // no key after it. kBusy: some are left, such as those being written.
  Result<std::uint64_t> remove_all() override;
  // kDeadline, kUnavailable: the master is dead or hangs.
  Status ping() override;
  // Values of all clients. Beyond 20,000 keys the master's own figures, which count other
  // programs' keys too. Needs the master's HTTP, as list_scopes() does.
  Result<StoreStats> stats() override;
  // Bytes: those of one value of each shard times their number.
  Result<std::vector<ScopeUsage>> list_scopes() override;
  bool reads_are_atomic() const override { return false; }

  // The bare calls beneath, with no deadline: for benches that put the two side by side, and
  // for tests.
  MooncakeClient& client() { return *session_->client; }

 private:
  // What calls keep alive that end after their caller.
  struct Session {
    Session(std::shared_ptr<MooncakeClient> client, std::shared_ptr<StagingArena> arena,
            AddressRanges lent)
        : client(std::move(client)), arena(std::move(arena)), lent(std::move(lent)) {}

    // Whether all of a payload lies in registered memory.
    bool holds(std::span<const ConstFragment> payload);
    std::string description(const ScopeId& scope);  // "": none was given here

    Mutex mutex;
    std::vector<std::shared_ptr<const void>> owners NM_GUARDED_BY(mutex);  // outlive the client
    std::vector<ByteView> registered NM_GUARDED_BY(mutex);
    const std::shared_ptr<MooncakeClient> client;
    const std::shared_ptr<StagingArena> arena;
    // Where the client mapped what it lends, with what lies beside it; empty: not known.
    const AddressRanges lent;
    RecentMap<ScopeId, std::string> descriptions NM_GUARDED_BY(mutex){4096};  // as given here
  };
  class Transfers;
  using Calls = std::vector<std::shared_ptr<CallPool::Call>>;
  struct Scan;

  MooncakeStore(const MooncakeConfig& config, Clock& clock, const MooncakeOptions& options);

  Time deadline() const { return clock_.now() + options_.timeout; }
  std::unexpected<Error> overdue(const char* what) const;
  Status join(const MakeClient& make_client, const MooncakeConfig& config);
  // One call into the wheel on a worker.
  Result<std::int64_t> call(const char* what, Time deadline,
                            std::function<Result<std::int64_t>(Session&)> work);

  ValueRoom room_of(const PutItem& item) const;
  Positions admit(std::span<const PutItem> items, std::vector<ValueRoom>& rooms,
                  std::vector<Status>& statuses);
  Result<std::shared_ptr<Transfer>> stage(Positions positions, std::span<const PutItem> items,
                                          std::span<const ValueRoom> rooms,
                                          std::vector<Status>& statuses, Time deadline);
  Positions read_lent(Positions wanted, std::span<const GetItem> items,
                      std::span<Result<GetValue>> values, Time deadline);
  void fetch(const Positions& wanted, std::span<const GetItem> items,
             std::span<Result<GetValue>> values, Time deadline);
  void share_out(std::uint64_t bytes, const std::function<void()>& work);
  Calls start(const std::shared_ptr<Lookup>& lookup);
  Result<std::size_t> finish(const Lookup& lookup, const Calls& calls, Time deadline);
  Result<std::uint64_t> count_records(Time deadline);
  Result<Scan> scan(Time deadline);
  Status measure(Scan& scan, Time deadline);
  std::string description_of(const ScopeId& scope, Time deadline);
  // A key that is not there, or cannot be read yet, is no error.
  Status remove_key(const std::string& key, Time deadline);
  static Result<std::int64_t> put_record(Session& session, const std::string& key,
                                         std::string_view value, Time deadline);

  Clock& clock_;
  const MooncakeOptions options_;
  const std::string master_;
  const std::uint64_t staging_bytes_;
  const MasterHttp http_;
  // Whether the master listens; a client of the caller's making need not have one.
  std::function<Status(Time deadline)> probe_ = [](Time) { return Status(); };
  std::shared_ptr<ScopeGate> gate_;
  std::shared_ptr<Session> session_;
  std::atomic<std::uint64_t> refused_late_puts_{0};
  // From then on a sole writer's put is looked at too: the key may be half written by it. And
  // headers keep out of payloads' memory, where it may be reading still: what it finds there is
  // its own, which no later payload fits.
  std::atomic<bool> had_failed_put_ = false;
  std::atomic<bool> last_lookup_hit_ = false;  // of many keys, and at least its first few
  Mutex mutex_;
  std::map<std::pair<ScopeId, std::string>, std::string> holds_ NM_GUARDED_BY(mutex_);  // keys
  CallPool purger_;
  CallPool calls_;
};

}  // namespace newmoon
