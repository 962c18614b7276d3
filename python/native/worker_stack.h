// WorkerStack: one rank with all that stands around it: store, staging, StoreWorker,
// transfer threads, and the LookupKeyServer on its ipc socket. The only place here, with
// SchedulerStack, that knows threads and sockets.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "admin/lookup_key_server.h"
#include "base/ticker.h"
#include "base/zmq_transport.h"
#include "python/native/worker_role.h"
#include "store/make_store.h"

namespace newmoon {

// Belongs to the rank's forward thread; start it after the last fork. Destruction drops
// what is queued, lets running store calls end, and ends every thread.
class WorkerStack {
 public:
  struct Options {
    std::string store_url;
    StoreOptions store;
    Duration load_timeout{0};  // see StoreWorker::Options
    std::string layout;        // text, as the scheduler's scope has it
    std::size_t rank = 0;      // of tensor parallelism
    std::size_t rank_count = 1;
    int block_size = 16;   // tokens
    std::string endpoint;  // of this rank's socket
    std::string engine_id;
    std::vector<StagedMemory::Region> regions;
    std::size_t block_count = 0;
    std::uint64_t staging_bytes = 0;  // of blocks; what the store has in front of each comes on top
    bool checksum = true;
    bool sole_writer = false;  // scopes are this engine's alone: identity unique
  };
  // kBadRequest, kUnavailable: as make_store() and ZmqServer::start(); or staging that
  // does not hold one block, or is more than the machine has.
  static Result<std::unique_ptr<WorkerStack>> start(Options options);
  ~WorkerStack();
  WorkerStack(const WorkerStack&) = delete;
  WorkerStack& operator=(const WorkerStack&) = delete;

  WorkerRole& role() { return *role_; }
  StoreWorker& worker() { return *worker_; }
  KvStore& store() { return *store_; }
  const StagedMemory& memory() const { return *memory_; }

 private:
  explicit WorkerStack(Options options) : options_(std::move(options)) {}
  Status open();
  Status make_staging();
  Status serve();
  void hold_scopes();
  StoreWorker::Options worker_options() const;

  const Options options_;
  SystemClock clock_;
  // Destroyed last to first: the socket, then the threads (which end what is queued), then
  // the server and the worker they call, then the store and the thread that frees for it.
  std::unique_ptr<ThreadExecutor> free_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<StagedMemory> memory_;
  std::unique_ptr<StoreWorker> worker_;
  std::unique_ptr<WorkerRole> role_;
  std::unique_ptr<LookupKeyServer> server_;
  // Rank 0 tells the store for all.
  std::unique_ptr<ScopeHold> hold_;
  std::unique_ptr<ThreadExecutor> purge_;  // those below post to it when a drain ends
  std::unique_ptr<ThreadExecutor> send_;
  std::unique_ptr<ThreadExecutor> receive_;
  std::unique_ptr<ThreadExecutor> quick_;
  std::unique_ptr<ThreadExecutor> bulk_;
  std::unique_ptr<Ticker> renewing_;
  std::unique_ptr<ZmqServer> socket_;
};

}  // namespace newmoon
