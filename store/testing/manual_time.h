// Time and tasks that move when a test says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/executor.h"
#include "base/thread_annotations.h"

namespace newmoon::testing {

// Runs tasks in run_one() only. Any thread may post.
class ManualExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  // False: there was none.
  bool run_one() {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      if (tasks_.empty()) return false;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    return true;
  }

 private:
  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ NM_GUARDED_BY(mutex_);
};

// Passes only while somebody sleeps: a sleep is over at once. `on_sleep` runs first.
class ManualClock final : public Clock {
 public:
  Time now() const override { return Time(now_.load()); }
  void sleep_until(Time deadline) override {
    if (on_sleep) on_sleep();
    Duration::rep before = now_;
    while (before < deadline.count() && !now_.compare_exchange_weak(before, deadline.count())) {
    }
  }
  void advance(Duration duration) { now_ += duration.count(); }

  std::function<void()> on_sleep;

 private:
  std::atomic<Duration::rep> now_{0};
};

}  // namespace newmoon::testing
