// Kernel: virtual time and the one event queue of a simulated world. Everything that
// happens is an event, ordered by (time, seeded tie-break, sequence number); blocking
// code runs on fibers and gives the thread back while it waits. A world and its
// kernel belong to one thread; the same seed gives the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "sim/fiber.h"

namespace newmoon::sim {

inline constexpr Time kNever = Time::max();

// Told of every line of the run's history, if there is one.
using TraceSink = std::function<void(Time, std::string_view what,
                                     std::initializer_list<std::uint64_t> arguments)>;

class Kernel {
 public:
  Kernel(std::uint64_t seed, FiberPool& fibers, TraceSink trace);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  Time now() const { return now_; }
  std::uint64_t event_count() const { return event_count_; }
  Random& random() { return random_; }

  // `callback` runs in no fiber: it must not block.
  void post_at(Time when, std::function<void()> callback);
  void post(std::function<void()> callback) { post_at(now_, std::move(callback)); }
  // Starts `body` on a fiber of its own, now.
  void spawn(std::function<void()> body);

  // Fibers that wait for something. Outlives its waiters.
  class WaitList {
   private:
    friend class Kernel;
    struct Waiter {
      std::size_t fiber;
      std::uint64_t wait_id;
    };
    std::vector<Waiter> waiters_;
  };
  // In a fiber. True: woken; false: `deadline` came first. Spurious wake-ups happen.
  bool wait(WaitList& list, Time deadline);
  void wake_all(WaitList& list);
  // In a fiber. Returns at once outside of one.
  void sleep_until(Time deadline);
  void sleep_for(Duration duration) { sleep_until(now_ + duration); }
  bool in_fiber() const { return current_ != kNoFiber; }

  // Runs events until `done` holds, none is left, or `limit`. `after_each` runs after
  // each event.
  void run(Time limit, const std::function<bool()>& done, const std::function<void()>& after_each);
  // Ends the world: whoever waits without a deadline is woken, and what is queued
  // runs out, so that every fiber ends. False: some fiber did not.
  bool drain();

  // A line of history: part of the end hash, and shown when tracing.
  void trace(std::string_view what, std::initializer_list<std::uint64_t> arguments);
  std::uint64_t history_hash() const { return history_hash_; }

  // Counts a look at the clock. Code that looks without end and never waits would
  // hang the simulation; it is stopped with a message that names the seed.
  void note_look();

 private:
  static constexpr std::size_t kNoFiber = static_cast<std::size_t>(-1);
  struct Event {
    Time when;
    std::uint32_t tie;
    std::uint64_t sequence;
    std::function<void()> callback;
  };
  struct Slot {
    std::unique_ptr<Fiber> fiber;
    std::uint64_t wait_id = 0;  // of the wait it is in; 0: none
    bool woken = false;
    bool endless = false;  // the wait has no deadline
  };

  static bool later(const Event& a, const Event& b);
  bool run_next(Time limit);
  void resume(std::size_t index);
  void end_wait(std::size_t index, std::uint64_t wait_id, bool woken);
  bool park(Time deadline, std::uint64_t wait_id);
  std::size_t free_slot();

  const std::uint64_t seed_;
  FiberPool& fibers_;
  TraceSink trace_;
  SeededRandom random_;
  SeededRandom ties_;
  Time now_{0};
  std::vector<Event> events_;  // a heap
  std::vector<Slot> slots_;
  std::size_t current_ = kNoFiber;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t next_wait_id_ = 1;
  std::uint64_t event_count_ = 0;
  std::uint64_t history_hash_ = 0;
  std::uint64_t looks_ = 0;  // at the clock, since the last event
  bool draining_ = false;
};

// Production's clock in the world.
class SimClock final : public Clock {
 public:
  explicit SimClock(Kernel& kernel) : kernel_(kernel) {}
  Time now() const override;
  void sleep_until(Time deadline) override { kernel_.sleep_until(deadline); }

 private:
  Kernel& kernel_;
};

}  // namespace newmoon::sim
