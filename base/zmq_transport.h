// The real transport: ZeroMQ over ipc sockets (base/transport.h is the seam). Only
// this file's .cc knows libzmq, and store/zmq_socket.cc, where payloads are not
// copied. No TCP: an open port without keys lets anyone on the network reset a cache.
//
// Envelopes. A message on the wire may start with an empty delimiter frame (REQ and
// our own client), with a 4-byte correlation id and the delimiter (REQ with
// ZMQ_REQ_CORRELATE), or with nothing (a bare DEALER). The server hands on what is
// behind it and puts the same envelope before the answer.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/transport.h"

namespace newmoon {

struct ZmqLimits {
  // Bytes of one message. A single larger frame costs its sender the connection.
  std::size_t message_bytes_max = std::size_t{64} << 20;
  std::size_t frames_max = 1024;
  // Messages queued per connection and direction; what goes beyond it is held back in
  // the peer (requests) or dropped (answers to a peer that does not read).
  int queued_messages_max = 64;
};

// One ROUTER socket bound to `ipc://PATH`, served by a thread of its own.
class ZmqServer {
 public:
  // Binds and serves until stop(). `handler` runs on the server's thread and must
  // neither block nor throw; what it references must outlive the server. A message
  // beyond the limits, or one whose ReplyFn is dropped uncalled, is answered with the
  // one byte 0x00, so that no client waits in vain.
  // kBadRequest, kUnavailable: as parse_ipc_endpoint() and IpcPathLock::acquire().
  static Result<std::unique_ptr<ZmqServer>> start(const std::string& endpoint,
                                                  MessageHandler handler, ZmqLimits limits = {});
  ~ZmqServer();
  ZmqServer(const ZmqServer&) = delete;
  ZmqServer& operator=(const ZmqServer&) = delete;

  // Ends the thread and removes the socket file; answers not yet sent are dropped.
  // Idempotent; not from within the handler.
  void stop();

  const std::string& endpoint() const { return endpoint_; }

 private:
  struct Impl;
  ZmqServer(std::string endpoint, std::unique_ptr<Impl> impl);

  std::string endpoint_;
  std::unique_ptr<Impl> impl_;
  std::thread thread_;
};

// One DEALER socket a peer, connected to `ipc://PATH`; sends [delimiter, frames...].
// Messages to a server that is not there (yet) are queued until it is, up to the
// limit. One thread.
class ZmqClientTransport final : public ClientTransport {
 public:
  // kBadRequest: an endpoint that is no ipc://PATH. `clock`: what the deadlines of
  // wait() are measured by, SystemClock in production.
  static Result<std::unique_ptr<ZmqClientTransport>> connect(std::vector<std::string> endpoints,
                                                             Clock& clock, ZmqLimits limits = {});
  ~ZmqClientTransport() override;

  std::size_t peer_count() const override;
  Status send(std::size_t peer, const Frames& frames) override;
  std::optional<std::pair<std::size_t, Frames>> receive() override;
  bool wait(Time deadline) override;
  void reopen(std::size_t peer) override;

 private:
  struct Impl;
  explicit ZmqClientTransport(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace newmoon
