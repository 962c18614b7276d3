// StoreWorker: one rank's end of the connector. Takes loads and saves with each
// step, moves bytes between this rank's block memory and the store on executors of
// its own, reports every job exactly once, and answers the lookup/admin channel.
//
// Threads: start_load_kv, wait_for_save and get_finished belong to the rank's forward
// thread; note_weight_write and the LookupBackend half may be called from any thread. Nothing here
// blocks on the store but the tasks on the executors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "admin/lookup_backend.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/thread_annotations.h"
#include "connector/fence.h"
#include "connector/metadata.h"
#include "connector/transfer_queue.h"
#include "store/kv_store.h"

namespace newmoon {

class StoreWorker final : public LookupBackend {
 public:
  struct Options {
    std::size_t rank = 0;
    Shard shard;                    // what this rank saves and loads
    std::vector<Shard> all_shards;  // a block counts only if every one is there
    LayoutId layout{};
    ScopeId foreign_scope;               // where lookups of foreign peers look
    std::size_t send_jobs_max = 256;     // queued; more are dropped and reported
    std::size_t receive_jobs_max = 256;  // queued; more are reported as failed
    std::size_t drains_max = 64;         // that wait for jobs to end; more are answered kBusy
    std::size_t batch_blocks_max = 64;   // blocks a store call; several saves may share a put
    // Of a load, from start_load_kv() on. What has not been asked of the store by then is
    // reported as failed; the call under way ends as the store sees fit. 0: none.
    Duration load_timeout{0};
    // Rule SELF. Ignored (checksums are on) unless the store's reads are atomic.
    bool checksum = true;
    // No other process writes this rank's keys: every scope is this engine's alone.
    bool sole_writer = false;
    // Ranks with identical bytes share a shard and divide its puts: this one stores the
    // blocks whose hash falls to `stripe_index`. REQUIRES: stripe_index < stripe_count.
    std::size_t stripe_index = 0;
    std::size_t stripe_count = 1;
  };

  // Rule SELF: values go without checksums only if none are `asked` for and reads are atomic.
  static bool uses_checksums(bool asked, const KvStore& store) {
    return asked || !store.reads_are_atomic();
  }

  // `send` and `receive` run the saves and the loads. All references must outlive
  // the worker; close() first, then destroy the executors, then the worker.
  StoreWorker(Options options, KvStore& store, BlockMemory& memory, const Clock& clock,
              Executor& send, Executor& receive);

  // --- forward thread, in this order a step ---
  void start_load_kv(const ConnectorMetadata& metadata);  // before the forward pass
  void wait_for_save(const ConnectorMetadata& metadata);  // after it; enqueues, waits for nothing
  WorkerReport get_finished();
  // Weights were written or may have been. `sealed_epoch`: the epoch that the engine
  // sealed to before, 0 if the writer knows of no engine (see EpochFloor).
  void note_weight_write(Epoch sealed_epoch);

  // Drops what is queued (reported), lets running jobs end. Later jobs are reported as
  // dropped or failed. Drains still end.
  void close();
  StoreWorkerStats stats() const;

  // --- LookupBackend, any thread ---
  // The counts in an ack are of the jobs dropped since the floor came to where it is, so
  // that the answer to a reset tells what the fence message ahead of it did, and a
  // repeated reset answers the same.
  Result<std::size_t> lookup(const LookupRequest& request) override;
  FenceAck fence(Epoch epoch) override;
  FenceAck weights_written() override;
  void reset(const ResetRequest& request, std::function<void(Result<ResetAck>)> done) override;
  void drain(std::function<void(Result<FenceAck>)> done) override;
  FenceAck status() override;
  RankStats rank_stats() override;
  Result<ScopesPage> list_scopes(const ScopesRequest& request) override;
  void purge(const PurgeRequest& request, std::function<void(Result<PurgeAck>)> done) override;

 private:
  struct TimedLoad : LoadJob {
    Time since{};  // start_load_kv()
    // Room for all of its blocks: a report must not fail for lack of memory, or the request
    // would wait for ever.
    mutable std::vector<BlockId> failed_blocks;
  };

  // Queued jobs dropped since the floor came to `floor`.
  struct Dropped {
    Epoch floor = 0;
    std::uint64_t loads = 0;
    std::uint64_t saves = 0;
  };

  // The scopes of the jobs of one epoch: what this engine uses, whatever the store knows.
  struct UsedScopes {
    Epoch epoch = 0;
    std::set<ScopeId> scopes;
  };

  // One block of a job among those that run together.
  struct JobBlock {
    std::size_t job;
    BlockRef block;
  };

  // What is put at once.
  struct PutBatch {
    std::vector<std::vector<ConstFragment>> payloads;  // that `items` refer to
    std::vector<PutItem> items;
    std::vector<std::size_t> jobs;  // by item
  };

  void run_saves(std::span<const SaveJob> jobs);
  void put_blocks(std::span<const SaveJob> jobs, std::vector<SaveOutcome>& outcomes);
  void put_batch(std::span<const SaveJob> jobs, std::span<const JobBlock> blocks,
                 std::vector<SaveOutcome>& outcomes);
  PutBatch admitted(std::span<const SaveJob> jobs, std::span<const JobBlock> blocks,
                    std::vector<SaveOutcome>& outcomes);
  SaveOutcome outcome_of(const Error& error);
  void run_load(const TimedLoad& job);
  std::size_t get_blocks(const TimedLoad& job);
  std::size_t get_batch(const LoadJob& job, std::span<const BlockRef> blocks);
  void remove_corrupt(const Key& key);
  Status check_value(const Key& key, const Result<GetValue>& value) const;

  bool owns(const BlockHash& hash) const;
  Key key_of(const ScopeId& scope, const BlockHash& hash) const;
  void hear(const ConnectorMetadata& metadata);
  void note_unbound(Epoch epoch) NM_REQUIRES(mutex_);
  bool admit(Epoch epoch);
  FenceAck drop_below_floor();
  void add_dropped(const Dropped& dropped);
  TimedLoad timed(const LoadJob& job);
  void owe_save();
  // These do not throw.
  void report_save(const SaveJob& job, SaveOutcome outcome);
  void report_load(const TimedLoad& job, std::size_t good_blocks);
  std::uint64_t count(std::uint64_t StoreWorkerStats::* counter, std::uint64_t amount = 1);
  bool in_time(const TimedLoad& job);
  void count_failure(const Error& error);
  void warn(const std::string& what, std::uint64_t seen, std::string_view remedy) const;
  void log_hop(const std::string& what) const;
  bool when_drained(std::function<void()> done);
  Result<ResetAck> remove_all(FenceAck fence);
  void note_used(const ScopeId& scope, Epoch epoch);
  Status check_unused(std::span<const ScopeUsage> scopes);

  const Options options_;
  const bool checksum_;
  KvStore& store_;
  BlockMemory& memory_;
  const Clock& clock_;

  mutable Mutex mutex_;
  EpochFloor floor_ NM_GUARDED_BY(mutex_);
  WorkerReport report_ NM_GUARDED_BY(mutex_);         // since the last get_finished(); has room for
  std::size_t owed_saves_ NM_GUARDED_BY(mutex_) = 0;  // those still to be reported
  std::size_t owed_loads_ NM_GUARDED_BY(mutex_) = 0;
  StoreWorkerStats stats_ NM_GUARDED_BY(mutex_);
  Dropped dropped_ NM_GUARDED_BY(mutex_);
  UsedScopes used_ NM_GUARDED_BY(mutex_);
  PurgeStats purges_ NM_GUARDED_BY(mutex_);

  TransferQueue<SaveJob> saves_;
  TransferQueue<TimedLoad> loads_;
};

}  // namespace newmoon
