// A serial queue of tasks: the seam behind which threads live.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "base/contain.h"
#include "base/thread_annotations.h"

namespace newmoon {

// Runs tasks one after the other in the order they were posted. Any thread may
// post; tasks may post. A task must not throw.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void post(std::function<void()> task) = 0;
};

// One thread of its own. The destructor runs what is queued, then joins. Should a task
// throw all the same, that is logged and the next one runs.
class ThreadExecutor final : public Executor {
 public:
  // `name` shows in debuggers and `top -H` (15 characters at most).
  explicit ThreadExecutor(std::string name);
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  void post(std::function<void()> task) override;

 private:
  void run(const std::string& name);

  ErrorCounter thrown_{"executor"};
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ NM_GUARDED_BY(mutex_);
  bool stopping_ NM_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Runs each task inside post(), for tests of one thread.
class InlineExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override { task(); }
};

}  // namespace newmoon
