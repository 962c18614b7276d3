// One rank's end of the lookup/admin channel over a store, with no engine and no KV: for `newmoon
// lookup-server` and `newmoon bench lookup`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "admin/lookup_key_server.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/result.h"
#include "base/zmq_transport.h"
#include "connector/store_worker.h"
#include "store/memory_store.h"

namespace newmoon {

// Threads of its own; the destructor ends them.
class LoneRank {
 public:
  // Serves `ipc://PATH` with `present` in the store, under the scope of all zeros,
  // which is also where lookups of foreign peers look. Errors as ZmqServer::start(),
  // and kBusy if the store did not take every hash.
  static Result<std::unique_ptr<LoneRank>> start(const std::string& endpoint, int block_size,
                                                 std::span<const BlockHash> present);
  // The same over a store of the caller's, which must outlive this.
  static Result<std::unique_ptr<LoneRank>> start(const std::string& endpoint, int block_size,
                                                 std::span<const BlockHash> present,
                                                 KvStore& store);

 private:
  // A rank that has no blocks to save or load.
  class NoBlocks final : public BlockMemory {
   public:
    std::vector<Fragment> fragments(BlockId) override { return {}; }
    std::uint64_t block_bytes() const override { return 0; }
  };

  // `store` nullptr: a memory store for `blocks`.
  LoneRank(int block_size, std::size_t blocks, KvStore* store);
  static Result<std::unique_ptr<LoneRank>> serve(std::unique_ptr<LoneRank> rank,
                                                 const std::string& endpoint,
                                                 std::span<const BlockHash> present);
  Status preload(std::span<const BlockHash> present);

  // Destroyed last to first: the socket, then the threads, then what they call.
  SystemClock clock_;
  NoBlocks memory_;
  std::unique_ptr<MemoryStore> own_store_;
  KvStore* store_;
  std::unique_ptr<StoreWorker> worker_;
  std::unique_ptr<LookupKeyServer> server_;
  ThreadExecutor free_{"nm-free"};
  ThreadExecutor transfer_{"nm-transfer"};
  ThreadExecutor quick_{"nm-lookup"};
  ThreadExecutor bulk_{"nm-lookup-bulk"};
  std::unique_ptr<ZmqServer> socket_;
};

}  // namespace newmoon
