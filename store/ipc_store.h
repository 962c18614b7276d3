// A store that another process serves (store/ipc_server.h), over `ipc://PATH`.
//
// Any thread may call; each call takes a connection of its own out of a small pool,
// so that calls do not wait for each other. Every call ends within the timeout:
// kUnavailable at once if nobody serves the path or the server dies meanwhile (the
// next call tries anew, so that a server that returns is found), kDeadline if it does
// not answer. A connection whose answer is overdue is closed, and answers carry the
// request's number, so that none is ever taken for that of another.
//
// Batches are split into messages of some MiB, which share the call's timeout. The
// payload checksum is computed here, over the bytes delivered.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "store/ipc_wire.h"
#include "store/kv_store.h"
#include "store/zmq_socket.h"

namespace newmoon {

class IpcStore final : public KvStore {
 public:
  struct Options {
    Duration timeout = std::chrono::seconds(1);  // of a call
  };

  // Connects when it is first used. kBadRequest: no ipc://PATH. `clock`: SystemClock,
  // for the timeouts; must outlive the store.
  static Result<std::unique_ptr<IpcStore>> open(const std::string& endpoint, Clock& clock,
                                                const Options& options);
  static Result<std::unique_ptr<IpcStore>> open(const std::string& endpoint, Clock& clock) {
    return open(endpoint, clock, Options());
  }
  ~IpcStore() override;

  // kBadRequest, besides the contract's: a value of over 64 MiB.
  std::vector<Status> put(std::span<const PutItem> items) override;
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override;
  // kBadRequest: more than 1,000,000 blocks or 4,096 shards.
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override;
  Status remove(const Key& key) override;
  Status purge_scope(const ScopeId& scope, bool for_good) override;
  void describe_scope(const ScopeId& scope, const std::string& description) override;
  // kBadRequest: a lease of over a day.
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override;
  Result<std::uint64_t> remove_all() override;
  Status ping() override;
  Result<StoreStats> stats() override;
  Result<std::vector<ScopeUsage>> list_scopes() override;
  // What the server's store says is not asked: values carry checksums.
  bool reads_are_atomic() const override { return false; }

 private:
  struct Reply {
    ipc::Head head;
    ZmqFrames body;
    // An empty one for a frame that is not there.
    ByteView frame(std::size_t index) const;
  };

  IpcStore(std::string endpoint, Clock& clock, const Options& options);

  Time deadline() const { return clock_.now() + options_.timeout; }
  Result<Reply> call(ipc::Head head, ZmqFrames body, Time deadline);
  Result<Reply> call(ipc::Op op, ByteView body);
  Result<Reply> exchange(ZmqSocket& connection, const ipc::Head& head, ZmqFrames body,
                         Time deadline);
  Result<Reply> await_reply(ZmqSocket& connection, const ipc::Head& head, Time deadline);
  Result<Reply> check_reply(const ipc::Head& request, const ipc::Head& head, ZmqFrames frames);
  Result<ZmqSocket> take_connection(Time deadline);
  void return_connection(ZmqSocket connection);
  Status put_batch(std::span<const PutItem> items, std::span<const std::size_t> positions,
                   std::vector<Status>& statuses, Time deadline);
  Status get_batch(std::span<const GetItem> items, std::vector<Result<GetValue>>& values,
                   Time deadline);
  std::unexpected<Error> garbage(const std::string& what) const;
  std::unexpected<Error> a_rank() const;

  const std::string endpoint_;
  Clock& clock_;
  const Options options_;
  ZmqContext context_;
  std::atomic<std::uint64_t> next_request_id_{1};
  Mutex mutex_;
  std::vector<ZmqSocket> idle_ NM_GUARDED_BY(mutex_);
};

}  // namespace newmoon
