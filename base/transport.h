// Message-level transport: frames in, frames out. ZeroMQ runs threads of its own
// and cannot be simulated, so the seam is here (base/zmq_transport.h is the real
// one, the simulator has another).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"

namespace newmoon {

// One multipart message, without routing envelope.
using Frames = std::vector<Bytes>;

// The client's ends of one connection to each of several servers ("peers",
// numbered from 0; peer r is rank r's server). One thread only.
class ClientTransport {
 public:
  virtual ~ClientTransport() = default;
  virtual std::size_t peer_count() const = 0;
  // Hands the message over without blocking. kUnavailable: the peer's outgoing
  // queue is full or its connection is closed; nothing was sent.
  virtual Status send(std::size_t peer, const Frames& frames) = 0;
  // The next message that has arrived, from any peer; never blocks.
  virtual std::optional<std::pair<std::size_t, Frames>> receive() = 0;
  // Blocks until receive() has something (true) or `deadline` (false).
  virtual bool wait(Time deadline) = 0;
  // Drops the connection to a peer with everything in flight in both directions
  // and connects anew: no reply to an earlier message can arrive afterwards.
  virtual void reopen(std::size_t peer) = 0;
};

// Answers one message. Callable once, from any thread, also after the server
// stopped (then it does nothing).
using ReplyFn = std::function<void(Frames)>;
// Called on the server's thread; must not block.
using MessageHandler = std::function<void(Frames, ReplyFn)>;

}  // namespace newmoon
