// An executor whose tasks run when the test says, so that a test can place an event
// between any two of them.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "base/executor.h"

namespace newmoon::testing {

class ManualExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override { tasks_.push_back(std::move(task)); }

  std::size_t size() const { return tasks_.size(); }
  // False if there was none.
  bool run_one() {
    if (tasks_.empty()) return false;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
    return true;
  }
  void run_all() {
    while (run_one()) {
    }
  }

 private:
  std::deque<std::function<void()>> tasks_;
};

}  // namespace newmoon::testing
