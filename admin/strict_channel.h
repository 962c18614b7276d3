// StrictChannel: one question at a time on each connection, for servers that match
// answers to questions by order only (vLLM's REP socket). An answer that did not come
// in time costs the connection, so that it can never be taken for a later one's.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/transport.h"

namespace newmoon {

// One thread. Nothing here blocks: time passes by calls of receive().
class StrictChannel {
 public:
  StrictChannel(ClientTransport& transport, Clock& clock);

  // Sent once those before it on that peer were answered, or have expired at their
  // deadline. One that expires is never answered.
  void ask(std::size_t peer, std::uint64_t id, Frames frames, Time deadline);
  // Forgets what is queued and in flight on that peer.
  void drop(std::size_t peer);

  struct Answer {
    std::size_t peer = 0;
    std::uint64_t id = 0;  // of the question
    Frames frames;
  };
  // The next answer that has arrived.
  std::optional<Answer> receive();

 private:
  struct Question {
    std::uint64_t id = 0;
    Frames frames;
    Time deadline{};
  };
  struct Peer {
    std::deque<Question> questions;
    bool sent = false;  // the front one is in flight
  };

  void send_next(std::size_t peer);
  void expire(std::size_t peer);

  ClientTransport& transport_;
  Clock& clock_;
  std::vector<Peer> peers_;
};

}  // namespace newmoon
