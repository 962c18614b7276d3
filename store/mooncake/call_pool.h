// Blocking calls with a deadline: they run on workers, and a caller that has waited long
// enough goes on without them. What a call uses must therefore belong to the call.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/contain.h"
#include "base/thread_annotations.h"

namespace newmoon {

class CallPool {
 public:
  // One call, queued, running or done.
  class Call {
   public:
    // False: it is not done at `deadline`, or threw, and has left behind what it had done by
    // then. If it has not begun it never will; else it goes on, and ends when it ends.
    // `awake`: how long to stay awake for it, giving way to who can run. To wake up takes 20 us,
    // and 100 on some virtual machines, as long as a small call.
    bool wait(Time deadline, Duration awake = Duration::zero());
    // If it has not begun it never will; else returns when it has ended.
    void cancel();

   private:
    friend class CallPool;
    enum class State { kQueued, kRunning, kDone, kDropped };

    Call(Clock& clock, std::function<void()> work) : clock_(clock), work_(std::move(work)) {}
    Status run();  // an error: what it threw
    bool has_ended() const { return state_ >= State::kDone; }

    Clock& clock_;
    Mutex mutex_;
    CondVar changed_;
    std::atomic<State> state_{State::kQueued};  // written under the mutex
    // What it holds goes before it counts as done, or dropped.
    std::function<void()> work_;
  };

  // Workers have all signals blocked that do not say that they did wrong, and so have the
  // threads that calls start.
  // `clock`: SystemClock, must outlive the pool and its calls.
  CallPool(std::size_t workers, const std::string& name, Clock& clock);
  // As stop() with no time left.
  ~CallPool();
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;

  // Should `work` throw, that is logged and the worker goes on. Any thread may call, not after
  // stop().
  std::shared_ptr<Call> start(std::function<void()> work);
  // A call is about to be started: a worker that sleeps wakes up, and stays awake for a moment.
  // Any thread may call, not after stop().
  void rouse();
  // Drops what is queued and waits for what runs. False: some still run at `deadline`;
  // their threads end by themselves.
  bool stop(Time deadline);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace newmoon
