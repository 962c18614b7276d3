// LookupKeyServer: one rank's end of the lookup/admin channel. Decodes, runs the
// command on the backend, answers. Every message is answered, whatever it is, and
// none can stop the server (contract W7).
//
// Sans-I/O: handle() is the MessageHandler of a ZmqServer (base/zmq_transport.h) in
// production and is called by the simulator directly.
#pragma once

#include <atomic>
#include <cstdint>

#include "admin/lookup_backend.h"
#include "admin/protocol.h"
#include "base/contain.h"
#include "base/executor.h"
#include "base/transport.h"

namespace newmoon {

class LookupKeyServer {
 public:
  struct Options {
    int block_size = 16;  // tokens
    ProtocolLimits limits{};
    std::size_t quick_lookup_blocks_max = 512;   // longer ones go to the bulk lane
    std::size_t queued_hashes_max = 4'000'000;   // in both lanes (33 bytes each); then kBusy
    std::size_t queued_store_commands_max = 16;  // stats, scopes and purge; then kBusy
  };

  // Lookups of up to quick_lookup_blocks_max blocks run on `quick`, longer ones on
  // `bulk`, so that a long one never holds up a short one. Fence, reset, drain, ping and
  // weights written are handed to the backend within handle(); stats, scopes and purge, which
  // ask the store, run on `bulk`. All references must outlive the server and its
  // executors' tasks.
  LookupKeyServer(LookupBackend& backend, Options options, Executor& quick, Executor& bulk);

  // Any thread. `reply` is called exactly once, from here or from an executor.
  void handle(const Frames& message, ReplyFn reply);

  LookupServerStats stats() const;

 private:
  void decode_and_dispatch(const Frames& message, ReplyFn reply);
  void dispatch(Request request, ReplyFn reply);
  void queue_lookup(Request request, ReplyFn reply);
  Frames lookup(const Request& request);
  void queue_store_command(Request request, ReplyFn reply);
  void run_store_command(const Request& request, const ReplyFn& reply);
  void refuse(const Frames& message, const Error& error, const ReplyFn& reply);

  LookupBackend& backend_;
  const Options options_;
  Executor& quick_;
  Executor& bulk_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> bad_requests_{0};
  std::atomic<std::uint64_t> foreign_requests_{0};
  std::atomic<std::uint64_t> busy_lookups_{0};
  std::atomic<std::size_t> queued_hashes_{0};
  ErrorCounter thrown_{"lookup-server"};
  std::atomic<std::size_t> queued_store_commands_{0};
};

}  // namespace newmoon
