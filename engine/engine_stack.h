// EngineStack: one engine with all that stands around it in production. R ranks in
// this process, each with a StoreWorker, transfer threads and a LookupKeyServer on an
// ipc socket of its own; a LookupKeyClient to them; scheduler, fence and core.
//
//   EngineCore -> Scheduler -> StoreScheduler -> LookupKeyClient ==ipc==> LookupKeyServer
//                    LocalExecutor -> StoreWorker (one a rank) -> KvStore
//
// With engine_loop.h the only place in engine/ that knows threads and sockets. The
// core belongs to the thread that drives it; destruction ends every thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admin/lookup_key_server.h"
#include "base/temp_folder.h"
#include "base/zmq_transport.h"
#include "engine/engine_core.h"
#include "engine/local_executor.h"

namespace newmoon {

class EngineStack {
 public:
  struct Options {
    EngineCore::Options core;
    ResetMode reset_mode = ResetMode::kFence;
    bool exclusive_store =
        false;  // nobody else uses it: remove_all, which empties it, asks for this
    HashAlgo hash_algo = HashAlgo::kSha256Cbor;
    std::optional<std::string> hash_seed;  // PYTHONHASHSEED; nullopt: vLLM's fixed one
    std::size_t rank_count = 1;
    bool checksum = true;
    bool enable_kv_events = false;
    Duration lookup_timeout = std::chrono::seconds(1);
    // Of the sockets lookup-<engine id>-rank<r>.sock; "": a fresh one, removed at the end.
    std::string socket_folder;
    std::string engine_id = "engine";
  };
  // Borrowed; all outlive the stack.
  struct Parts {
    ModelRunner& runner;
    KvArena& arena;
    KvStore* store = nullptr;  // null: no external tier, no threads, no sockets
    Clock& clock;
    Random& random;
    // For tests and fault injection: what is put around the transport to the ranks.
    std::function<std::unique_ptr<ClientTransport>(std::unique_ptr<ClientTransport>)>
        wrap_transport;
  };

  // Starts everything and adopts the weights that the runner holds.
  // kBadRequest, kUnavailable: a figure, the socket folder, or the model; it says which.
  static Result<std::unique_ptr<EngineStack>> start(Options options, Parts parts);
  ~EngineStack();
  EngineStack(const EngineStack&) = delete;
  EngineStack& operator=(const EngineStack&) = delete;

  EngineCore& core() { return *core_; }
  LocalExecutor& executor() { return *executor_; }
  std::size_t rank_count() const { return ranks_.size(); }  // 0 without a store
  StoreWorker& worker(std::size_t rank) { return *ranks_[rank]->worker; }
  LookupKeyServer& server(std::size_t rank) { return *ranks_[rank]->server; }
  // The socket of a rank, as upstream's tools can reach it.
  const std::string& endpoint(std::size_t rank) const { return ranks_[rank]->endpoint; }
  // Simulates the death of a rank's channel: its socket goes, its worker stays.
  void stop_server(std::size_t rank) { ranks_[rank]->socket->stop(); }

 private:
  // Members are destroyed last to first: the socket, then the threads (which end what
  // is queued), then the server and the worker they call.
  struct Rank {
    std::unique_ptr<BlockMemory> memory;
    std::unique_ptr<StoreWorker> worker;
    std::unique_ptr<LookupKeyServer> server;
    std::unique_ptr<ThreadExecutor> send;
    std::unique_ptr<ThreadExecutor> receive;
    std::unique_ptr<ThreadExecutor> quick;
    std::unique_ptr<ThreadExecutor> bulk;
    std::string endpoint;
    std::unique_ptr<ZmqServer> socket;
  };

  EngineStack(Options options, Parts parts);
  Status start_ranks();
  Result<std::unique_ptr<Rank>> start_rank(std::size_t rank);
  Status connect();
  Status build_core();

  const Options options_;
  const Parts parts_;
  const ModelInfo info_;
  const Incarnation incarnation_;
  BlockHasher hasher_;
  Fence fence_;
  BlockPool pool_;
  std::optional<TempFolder> own_folder_;

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<ClientTransport> transport_;
  std::unique_ptr<LookupKeyClient> client_;
  std::unique_ptr<ScopeHold> hold_;
  std::unique_ptr<StoreScheduler> store_scheduler_;
  std::optional<StoreConnector> connector_;
  std::unique_ptr<ThreadExecutor> background_;  // purges and leases
  std::unique_ptr<LocalExecutor> executor_;
  std::unique_ptr<EngineCore> core_;
};

}  // namespace newmoon
