// Shares one KvStore among the processes of a machine, over `ipc://PATH`: the
// serving side of store/ipc_store.h. Wire: store/ipc_wire.h, docs/formats.md.
//
// One thread receives, answers what is quick (lookups, purges, figures) and sends;
// puts and gets run on workers, so that bytes being copied hold up no lookup.
// Whatever a peer sends is answered or, if it cannot be, dropped and counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "store/kv_store.h"

namespace newmoon {

class StoreServer {
 public:
  struct Options {
    int workers = 2;
    // Puts and gets that wait for a worker; what comes on top is answered kBusy.
    std::size_t queued_requests_max = 64;
  };

  // Binds and serves until it is destroyed. `store` must outlive it.
  // kBadRequest, kUnavailable: as parse_ipc_endpoint() and IpcPathLock::acquire():
  // the path's directory is private, a live server keeps its path, a dead one's is
  // taken over.
  static Result<std::unique_ptr<StoreServer>> start(const std::string& endpoint, KvStore& store,
                                                    const Options& options);
  static Result<std::unique_ptr<StoreServer>> start(const std::string& endpoint, KvStore& store) {
    return start(endpoint, store, Options());
  }
  // Waits for the requests that run; drops the answers that were not sent.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Requests that were not understood.
  std::uint64_t bad_requests() const;

 private:
  struct Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace newmoon
