// Production's Executor in the world: one simulated thread.
#pragma once

#include <deque>
#include <functional>

#include "base/executor.h"
#include "sim/kernel.h"

namespace newmoon::sim {

// Tasks run one after the other on a fiber; each starts up to `latency_max` after
// the thread became free for it. Must outlive its tasks.
class SimTaskQueue final : public Executor {
 public:
  SimTaskQueue(Kernel& kernel, Duration latency_max);

  void post(std::function<void()> task) override;
  bool idle() const { return tasks_.empty() && !running_; }

 private:
  void run();

  Kernel& kernel_;
  const Duration latency_max_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;
};

// Uniform in [low, high].
Duration draw_duration(Random& random, Duration low, Duration high);

}  // namespace newmoon::sim
