#include "store/mooncake/call_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace newmoon {
namespace {

// Of a roused worker: longer than it takes to prepare a call.
constexpr Duration kRousedTime = std::chrono::microseconds(100);

}  // namespace

// Outlives the pool while a call runs.
struct CallPool::Shared {
  explicit Shared(Clock& clock) : clock(clock) {}

  void work() {
    while (const std::shared_ptr<Call> call = next()) {
      if (const Status ran = call->run(); !ran) thrown.add(ran.error());
    }
    MutexLock lock(mutex);
    --threads;
    changed.notify_all();
  }

  // nullptr: the pool has stopped.
  std::shared_ptr<Call> next() {
    while (true) {
      {
        MutexLock lock(mutex);
        while (!stopping && calls.empty() && clock.now() >= awake_until) changed.wait(mutex);
        if (stopping) return nullptr;
        if (!calls.empty()) {
          std::shared_ptr<Call> call = std::move(calls.front());
          calls.pop_front();
          return call;
        }
      }
      std::this_thread::yield();
    }
  }

  Clock& clock;
  ErrorCounter thrown{"call pool"};
  Mutex mutex;
  CondVar changed;
  std::deque<std::shared_ptr<Call>> calls NM_GUARDED_BY(mutex);
  Time awake_until NM_GUARDED_BY(mutex){};
  std::size_t threads NM_GUARDED_BY(mutex) = 0;
  bool stopping NM_GUARDED_BY(mutex) = false;
};

Status CallPool::Call::run() {
  {
    MutexLock lock(mutex_);
    if (state_ != State::kQueued) return {};
    state_ = State::kRunning;
  }
  const Status ran = contain(work_);
  work_ = nullptr;
  {
    MutexLock lock(mutex_);
    state_ = ran ? State::kDone : State::kDropped;
  }
  changed_.notify_all();  // not under the mutex, which who wakes up needs
  return ran;
}

bool CallPool::Call::wait(Time deadline, Duration awake) {
  const Time until = std::min(deadline, clock_.now() + awake);
  while (!has_ended() && clock_.now() < until) std::this_thread::yield();
  MutexLock lock(mutex_);
  while (state_ != State::kDone) {
    if (state_ == State::kDropped) return false;
    const Duration left = deadline - clock_.now();
    if (left <= Duration::zero()) {
      if (state_ == State::kQueued) state_ = State::kDropped;
      return false;
    }
    changed_.wait_for(mutex_, left);
  }
  return true;
}

void CallPool::Call::cancel() {
  MutexLock lock(mutex_);
  if (state_ == State::kQueued) state_ = State::kDropped;
  while (state_ == State::kRunning) changed_.wait(mutex_);
}

CallPool::CallPool(std::size_t workers, const std::string& name, Clock& clock)
    : shared_(std::make_shared<Shared>(clock)) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  for (std::size_t i = 0; i < workers; ++i) {
    {
      MutexLock lock(shared_->mutex);
      ++shared_->threads;
    }
    std::thread thread([shared = shared_, name] {
      pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
      shared->work();
    });
    thread.detach();  // stop() waits for it, but not for ever
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CallPool::~CallPool() { stop(shared_->clock.now()); }

std::shared_ptr<CallPool::Call> CallPool::start(std::function<void()> work) {
  std::shared_ptr<Call> call(new Call(shared_->clock, std::move(work)));
  {
    MutexLock lock(shared_->mutex);
    shared_->calls.push_back(call);
  }
  shared_->changed.notify_one();
  return call;
}

void CallPool::rouse() {
  {
    MutexLock lock(shared_->mutex);
    shared_->awake_until = shared_->clock.now() + kRousedTime;
  }
  shared_->changed.notify_one();
}

bool CallPool::stop(Time deadline) {
  std::deque<std::shared_ptr<Call>> dropped;
  MutexLock lock(shared_->mutex);
  shared_->stopping = true;
  dropped.swap(shared_->calls);
  shared_->changed.notify_all();
  while (shared_->threads > 0) {
    const Time now = shared_->clock.now();
    if (deadline <= now) return false;
    shared_->changed.wait_for(shared_->mutex, deadline - now);
  }
  return true;
}

}  // namespace newmoon
