// The network between one engine and its ranks: production's ClientTransport on one
// end, LookupKeyServer::handle on the other, and a wire that loses, delays, repeats
// and cuts short in between. Messages of one peer stay in order but for repeats,
// those of different peers do not.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/transport.h"
#include "sim/kernel.h"
#include "sim/task_queue.h"

namespace newmoon::sim {

// A process of the world. A dead one has no effect on anything any more: its stores
// and messages fail, and its code runs out unseen.
struct Process {
  bool alive = true;
};

struct NetworkFaults {
  Duration delay_max{std::chrono::microseconds(300)};
  Duration slow_max{std::chrono::milliseconds(80)};  // of a message that is slow
  unsigned slow_percent = 0;
  unsigned loss_percent = 0;
  unsigned repeat_percent = 0;
  unsigned cut_percent = 0;  // the last frame is lost
};

class SimTransport final : public ClientTransport {
 public:
  // `faults` may change while messages travel. `client` is the engine's process.
  SimTransport(Kernel& kernel, const NetworkFaults& faults, const Process& client);

  // Adds the server of the next rank. Its handler runs on a simulated thread.
  void connect(MessageHandler handler, const Process& server);

  // Told when a message of the client is lost on its way to a peer, and when an
  // answer is delivered again.
  std::function<void(std::size_t peer, const Frames& frames)> on_lost;
  std::function<void(std::size_t peer)> on_repeated;
  // Told of each fault of the wire.
  std::function<void()> on_fault;
  // Told how long after its request an answer arrives.
  std::function<void(Duration after)> on_answer;
  // Called before the client blocks.
  std::function<void()> on_wait;
  std::uint64_t sent_count() const { return sent_count_; }

  std::size_t peer_count() const override { return peers_.size(); }
  Status send(std::size_t peer, const Frames& frames) override;
  std::optional<std::pair<std::size_t, Frames>> receive() override;
  bool wait(Time deadline) override;
  void reopen(std::size_t peer) override;

 private:
  struct Peer {
    MessageHandler handler;
    const Process* process = nullptr;
    std::unique_ptr<SimTaskQueue> thread;
    std::uint64_t connection = 0;  // messages of an earlier one are dropped
    Time last_request{0};          // when the newest message arrives; keeps the order
    Time last_answer{0};
  };

  bool fault(unsigned percent);
  void carry(Time& last, const Frames& frames, const std::function<void(Frames)>& deliver,
             const std::function<void()>& lost, const std::function<void()>& repeated);
  void deliver_request(std::size_t peer, std::uint64_t connection, Time asked, Frames frames);
  void answer(std::size_t peer, std::uint64_t connection, Time asked, const Frames& frames);
  void deliver_answer(std::size_t peer, std::uint64_t connection, Frames frames);

  Kernel& kernel_;
  const NetworkFaults& faults_;
  const Process& client_;
  std::vector<Peer> peers_;
  std::deque<std::pair<std::size_t, Frames>> inbox_;
  Kernel::WaitList readers_;
  std::uint64_t sent_count_ = 0;
};

}  // namespace newmoon::sim
