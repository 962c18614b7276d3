// A clock that stands still but in waits, and a transport whose other end is the test.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/transport.h"

namespace newmoon::testing {

class FakeClock final : public Clock {
 public:
  Time now() const override { return now_; }
  void sleep_until(Time deadline) override { now_ = std::max(now_, deadline); }
  void advance(Duration by) { now_ += by; }

 private:
  Time now_ = std::chrono::seconds(1000);
};

class FakeTransport final : public ClientTransport {
 public:
  FakeTransport(FakeClock& clock, std::size_t peers) : clock_(clock), peers_(peers) {}

  std::size_t peer_count() const override { return peers_; }
  Status send(std::size_t peer, const Frames& frames) override {
    if (full.contains(peer)) return fail(Code::kUnavailable, "full");
    sent.emplace_back(peer, frames);
    if (on_send) on_send(peer, frames);
    return {};
  }
  std::optional<std::pair<std::size_t, Frames>> receive() override {
    deliver_due();
    if (inbox_.empty()) return std::nullopt;
    auto message = std::move(inbox_.front());
    inbox_.pop_front();
    return message;
  }
  bool wait(Time deadline) override {
    if (inbox_.empty() && !later_.empty() && later_.begin()->first <= deadline) {
      clock_.sleep_until(later_.begin()->first);
    }
    deliver_due();
    if (inbox_.empty()) clock_.sleep_until(deadline);
    return !inbox_.empty();
  }
  void reopen(std::size_t peer) override {
    ++reopened[peer];
    std::erase_if(later_, [&](const auto& entry) { return entry.second.first == peer; });
    std::erase_if(inbox_, [&](const auto& entry) { return entry.first == peer; });
  }

  void deliver(std::size_t peer, Frames frames) { inbox_.emplace_back(peer, std::move(frames)); }
  void deliver_after(Duration delay, std::size_t peer, Frames frames) {
    later_.emplace(clock_.now() + delay, std::pair(peer, std::move(frames)));
  }

  std::vector<std::pair<std::size_t, Frames>> sent;
  std::function<void(std::size_t, const Frames&)> on_send;
  std::set<std::size_t> full;  // peers whose queue takes nothing
  std::map<std::size_t, int> reopened;

 private:
  void deliver_due() {
    while (!later_.empty() && later_.begin()->first <= clock_.now()) {
      inbox_.push_back(std::move(later_.begin()->second));
      later_.erase(later_.begin());
    }
  }

  FakeClock& clock_;
  std::size_t peers_;
  std::deque<std::pair<std::size_t, Frames>> inbox_;
  std::multimap<Time, std::pair<std::size_t, Frames>> later_;
};

}  // namespace newmoon::testing
