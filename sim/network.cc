#include "sim/network.h"

#include <algorithm>

namespace newmoon::sim {

SimTransport::SimTransport(Kernel& kernel, const NetworkFaults& faults, const Process& client)
    : kernel_(kernel), faults_(faults), client_(client) {}

void SimTransport::connect(MessageHandler handler, const Process& server) {
  Peer peer;
  peer.handler = std::move(handler);
  peer.process = &server;
  peer.thread = std::make_unique<SimTaskQueue>(kernel_, std::chrono::microseconds(20));
  peers_.push_back(std::move(peer));
}

bool SimTransport::fault(unsigned percent) {
  if (!kernel_.random().chance(percent)) return false;
  if (on_fault) on_fault();
  return true;
}

// Draws what the wire does to one message.
void SimTransport::carry(Time& last, const Frames& frames,
                         const std::function<void(Frames)>& deliver,
                         const std::function<void()>& lost, const std::function<void()>& repeated) {
  Random& random = kernel_.random();
  if (fault(faults_.loss_percent)) {
    kernel_.trace("lost", {frames.size()});
    lost();
    return;
  }
  const bool slow = fault(faults_.slow_percent);
  const Duration delay =
      draw_duration(random, Duration{0}, slow ? faults_.slow_max : faults_.delay_max);
  last = std::max(last, kernel_.now() + delay);
  Frames sent = frames;
  if (sent.size() > 1 && fault(faults_.cut_percent)) sent.pop_back();
  if (fault(faults_.repeat_percent)) {
    const Time again = last + draw_duration(random, Duration{0}, faults_.slow_max);
    kernel_.post_at(again, [deliver, repeated, sent] {
      repeated();
      deliver(sent);
    });
  }
  kernel_.post_at(last, [deliver, sent = std::move(sent)] { deliver(sent); });
}

Status SimTransport::send(std::size_t peer, const Frames& frames) {
  ++sent_count_;
  const std::uint64_t connection = peers_[peer].connection;
  const Time now = kernel_.now();
  carry(
      peers_[peer].last_request, frames,
      [this, peer, connection, now](Frames sent) {
        deliver_request(peer, connection, now, std::move(sent));
      },
      [&] {
        if (on_lost) on_lost(peer, frames);
      },
      [] {});
  return {};
}

void SimTransport::deliver_request(std::size_t peer, std::uint64_t connection, Time asked,
                                   Frames frames) {
  Peer& to = peers_[peer];
  if (to.connection != connection || !to.process->alive || !client_.alive) return;
  to.thread->post([this, peer, connection, asked, frames = std::move(frames)] {
    peers_[peer].handler(frames, [this, peer, connection, asked](Frames reply) {
      answer(peer, connection, asked, reply);
    });
  });
}

void SimTransport::answer(std::size_t peer, std::uint64_t connection, Time asked,
                          const Frames& frames) {
  Peer& from = peers_[peer];
  if (from.connection != connection || !from.process->alive) return;
  carry(
      from.last_answer, frames,
      [this, peer, connection, asked](Frames reply) {
        if (on_answer) on_answer(kernel_.now() - asked);
        deliver_answer(peer, connection, std::move(reply));
      },
      [] {},
      [this, peer] {
        if (on_repeated) on_repeated(peer);
      });
}

void SimTransport::deliver_answer(std::size_t peer, std::uint64_t connection, Frames frames) {
  if (peers_[peer].connection != connection) return;
  inbox_.emplace_back(peer, std::move(frames));
  kernel_.wake_all(readers_);
}

std::optional<std::pair<std::size_t, Frames>> SimTransport::receive() {
  if (inbox_.empty()) return std::nullopt;
  auto message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

bool SimTransport::wait(Time deadline) {
  if (on_wait) on_wait();
  while (inbox_.empty() && kernel_.now() < deadline) {
    if (!kernel_.wait(readers_, deadline)) break;
  }
  return !inbox_.empty();
}

void SimTransport::reopen(std::size_t peer) {
  ++peers_[peer].connection;
  std::erase_if(inbox_, [peer](const auto& message) { return message.first == peer; });
}

}  // namespace newmoon::sim
