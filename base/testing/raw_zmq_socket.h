// A bare libzmq client (REQ, DEALER, or REP/ROUTER as a server) for tests that speak
// the wire as others do, envelope included. One thread.
#pragma once

#include <gtest/gtest.h>
#include <zmq.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/transport.h"

namespace newmoon::testing {

class RawZmqSocket {
 public:
  // `type`: ZMQ_REQ, ... Connects, or with `bind` binds.
  RawZmqSocket(int type, const std::string& endpoint, bool bind = false)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    set(ZMQ_LINGER, 0);
    set(ZMQ_RCVTIMEO, 10'000);
    set(ZMQ_SNDTIMEO, 10'000);
    const int failed =
        bind ? zmq_bind(socket_, endpoint.c_str()) : zmq_connect(socket_, endpoint.c_str());
    EXPECT_EQ(failed, 0) << endpoint << ": " << zmq_strerror(zmq_errno());
  }
  ~RawZmqSocket() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  RawZmqSocket(const RawZmqSocket&) = delete;
  RawZmqSocket& operator=(const RawZmqSocket&) = delete;

  void set(int option, int value) { zmq_setsockopt(socket_, option, &value, sizeof value); }

  bool send(const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      if (zmq_send(socket_, frames[i].data(), frames[i].size(), flags) < 0) return false;
    }
    return true;
  }

  // nullopt: nothing came within 10 s.
  std::optional<Frames> receive() {
    Frames frames;
    while (true) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_, 0) < 0) {
        zmq_msg_close(&part);
        return std::nullopt;
      }
      const auto* data = static_cast<const std::uint8_t*>(zmq_msg_data(&part));
      frames.emplace_back(data, data + zmq_msg_size(&part));
      const bool more = zmq_msg_more(&part) != 0;
      zmq_msg_close(&part);
      if (!more) return frames;
    }
  }

  std::optional<Frames> ask(const Frames& frames) {
    if (!send(frames)) return std::nullopt;
    return receive();
  }

 private:
  void* context_;
  void* socket_;
};

}  // namespace newmoon::testing
