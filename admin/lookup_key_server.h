// LookupKeyServer: one rank's end of the lookup/admin channel. Decodes, runs the
// command on the backend, answers. Every message is answered, whatever it is, and
// none can stop the server (contract W7).
//
// Sans-I/O: handle() is given to a ZmqServer in production (admin/zmq wiring in
// base/zmq_transport.h) and called by the simulator directly.
#pragma once

#include <atomic>
#include <cstdint>

#include "admin/lookup_backend.h"
#include "admin/protocol.h"
#include "base/executor.h"
#include "base/transport.h"

namespace newmoon {

struct LookupServerStats {
  std::uint64_t requests = 0;
  std::uint64_t bad_requests = 0;
  std::uint64_t foreign_requests = 0;
};

class LookupKeyServer {
 public:
  struct Options {
    int block_size = 16;  // tokens
    ProtocolLimits limits;
    std::size_t quick_lookup_blocks_max = 512;  // longer ones go to the bulk lane
  };

  // Lookups of up to quick_lookup_blocks_max blocks run on `quick`, longer ones on
  // `bulk`, so that a long one never holds up a short one. Fence, reset and ping
  // run in handle(). All references must outlive the server and its executors' tasks.
  LookupKeyServer(LookupBackend& backend, Options options, Executor& quick, Executor& bulk);

  // Any thread. `reply` is called exactly once, from here or from an executor.
  void handle(Frames message, ReplyFn reply);

  LookupServerStats stats() const;

 private:
  void dispatch(const Request& request, ReplyFn reply);
  void lookup(const Request& request, ReplyFn reply);

  LookupBackend& backend_;
  const Options options_;
  Executor& quick_;
  Executor& bulk_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> bad_requests_{0};
  std::atomic<std::uint64_t> foreign_requests_{0};
};

}  // namespace newmoon
