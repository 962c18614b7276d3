// StoreWorker: one rank's end of the connector. Takes loads and saves with each
// step, moves bytes between this rank's block memory and the store on executors of
// its own, reports every job exactly once, and answers the lookup/admin channel.
//
// Threads: start_load_kv, wait_for_save, get_finished and note_weight_write belong
// to the rank's forward thread; the LookupBackend half may be called from any
// thread. Nothing here blocks on the store but the tasks on the executors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "admin/lookup_backend.h"
#include "base/executor.h"
#include "base/thread_annotations.h"
#include "connector/fence.h"
#include "connector/metadata.h"
#include "store/kv_store.h"

namespace newmoon {

struct StoreWorkerStats {
  std::uint64_t saved_blocks = 0;
  std::uint64_t loaded_blocks = 0;
  std::uint64_t missing_blocks = 0;  // promised by a lookup, gone at load
  std::uint64_t corrupt_blocks = 0;
  std::uint64_t refused_jobs = 0;   // below the floor or unbound
  std::uint64_t dropped_saves = 0;  // queue full or store busy
};

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
    std::size_t batch_blocks_max = 64;   // blocks a store call
    bool checksum = true;                // may be false only if the store's reads are atomic
  };

  // `send` and `receive` run the saves and the loads. All references must outlive
  // the worker; close() first, then destroy the executors, then the worker.
  StoreWorker(Options options, KvStore& store, BlockMemory& memory, Executor& send,
              Executor& receive);

  // --- forward thread, in this order a step ---
  void start_load_kv(const ConnectorMetadata& metadata);  // before the forward pass
  void wait_for_save(const ConnectorMetadata& metadata);  // after it; enqueues, waits for nothing
  WorkerReport get_finished();
  void note_weight_write();  // weights were written or may have been

  // Drops what is queued (reported), lets running jobs end.
  void close();
  StoreWorkerStats stats() const;

  // --- LookupBackend, any thread ---
  Result<std::size_t> lookup(const LookupRequest& request) override;
  FenceAck fence(Epoch epoch) override;
  void reset(const ResetRequest& request, std::function<void(Result<ResetAck>)> done) override;
  void drain(std::function<void(Result<FenceAck>)> done) override;
  FenceAck status() override;
};

}  // namespace newmoon
