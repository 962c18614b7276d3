#include "admin/strict_channel.h"

#include <utility>

namespace newmoon {

StrictChannel::StrictChannel(ClientTransport& transport, Clock& clock)
    : transport_(transport), clock_(clock), peers_(transport.peer_count()) {}

void StrictChannel::ask(std::size_t peer, std::uint64_t id, Frames frames, Time deadline) {
  peers_[peer].questions.push_back({id, std::move(frames), deadline});
  expire(peer);
  send_next(peer);
}

void StrictChannel::drop(std::size_t peer) {
  peers_[peer].questions.clear();
  if (std::exchange(peers_[peer].sent, false)) transport_.reopen(peer);
}

std::optional<StrictChannel::Answer> StrictChannel::receive() {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    expire(peer);
    send_next(peer);
  }
  while (auto message = transport_.receive()) {
    Peer& peer = peers_[message->first];
    if (!std::exchange(peer.sent, false)) continue;  // nobody asked
    Answer answer{message->first, peer.questions.front().id, std::move(message->second)};
    peer.questions.pop_front();
    send_next(message->first);
    return answer;
  }
  return std::nullopt;
}

void StrictChannel::send_next(std::size_t peer) {
  Peer& to = peers_[peer];
  if (to.sent || to.questions.empty()) return;
  // A full queue is no news to the caller: the question expires like an unanswered one.
  to.sent = transport_.send(peer, to.questions.front().frames).has_value();
}

void StrictChannel::expire(std::size_t peer) {
  Peer& from = peers_[peer];
  const Time now = clock_.now();
  while (!from.questions.empty() && from.questions.front().deadline <= now) {
    if (std::exchange(from.sent, false)) transport_.reopen(peer);
    from.questions.pop_front();
  }
}

}  // namespace newmoon
