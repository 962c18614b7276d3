// ZeroMQ sockets whose frames are received and sent without copying them, for the
// store's payloads (base/zmq_transport.h copies, which is right for the small
// messages of the admin channel). Only this file's .cc knows libzmq in store/.
// A socket is one thread's at a time; frames go anywhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"

namespace newmoon {

// One frame, owned.
class ZmqFrame {
 public:
  // Of that size, contents undefined.
  explicit ZmqFrame(std::size_t bytes = 0);
  explicit ZmqFrame(ByteView copied);
  ZmqFrame(ZmqFrame&&) noexcept;
  ZmqFrame& operator=(ZmqFrame&&) noexcept;
  ~ZmqFrame();

  ByteView bytes() const;
  MutableByteView mutable_bytes();

 private:
  friend class ZmqSocket;
  struct Message;
  Message* message() const;
  alignas(8) mutable std::byte storage_[64];  // of a zmq_msg_t
};

using ZmqFrames = std::vector<ZmqFrame>;

class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();  // REQUIRES: its sockets are closed
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }
  // A name within the context, never given twice.
  std::string next_inproc_name() { return "inproc://" + std::to_string(next_name_++); }

 private:
  void* context_;
  std::atomic<std::uint64_t> next_name_{0};
};

class ZmqSocket {
 public:
  struct Limits {
    // A larger frame costs its sender the connection.
    std::size_t frame_bytes_max = std::size_t{64} << 20;
    // Of a message; the frames beyond are received and thrown away.
    std::size_t frames_max = 2048;
    int queued_messages_max = 64;  // a connection and direction
  };

  // Served by a ROUTER: frame 0 of what is received and sent is the peer's id.
  // kUnavailable: cannot bind.
  static Result<ZmqSocket> bind_router(ZmqContext& context, const std::string& endpoint,
                                       const Limits& limits);
  // A DEALER that has just connected. kUnavailable: nobody serves the endpoint;
  // kDeadline: somebody listens there but did not greet in time.
  static Result<ZmqSocket> connect_dealer(ZmqContext& context, const std::string& endpoint,
                                          const Limits& limits, Clock& clock, Time deadline);

  ZmqSocket(ZmqSocket&&) noexcept = default;
  ZmqSocket& operator=(ZmqSocket&&) noexcept = default;

  // Never blocks. False: not sent, and the socket is of no use any more (DEALER), or
  // the peer is gone or reads too slowly (ROUTER).
  bool send(ZmqFrames frames);

  struct Received {
    ZmqFrames frames;
    bool cut = false;  // there were more than frames_max, or there was no memory for them
  };
  // The next whole message, if there is one; never blocks.
  std::optional<Received> receive();

  // Until a message has come, the connection broke (DEALER), `wake_fd` (-1: none) is
  // readable, or the time is over; a signal may end it early.
  enum class Wait { kMessage, kLost, kWoken, kTimeout };
  Wait wait(Duration timeout, int wake_fd = -1);
  // DEALER: whether its connection broke since it was made. Never blocks.
  bool lost();

 private:
  struct Close {
    void operator()(void* socket) const;
  };
  using Handle = std::unique_ptr<void, Close>;

  ZmqSocket(ZmqContext& context, int type, const Limits& limits);
  void set(int option, int value);
  bool watch(ZmqContext& context);
  // What the monitor says next: true connected, false not; nullopt: nothing yet.
  std::optional<bool> next_event();

  Limits limits_;
  Handle socket_;
  Handle monitor_;
};

}  // namespace newmoon
