#include "sim/task_queue.h"

#include <utility>

namespace newmoon::sim {

SimTaskQueue::SimTaskQueue(Kernel& kernel, Duration latency_max)
    : kernel_(kernel), latency_max_(latency_max) {}

void SimTaskQueue::post(std::function<void()> task) {
  tasks_.push_back(std::move(task));
  if (running_) return;
  running_ = true;
  kernel_.spawn([this] { run(); });
}

void SimTaskQueue::run() {
  while (!tasks_.empty()) {
    kernel_.sleep_for(draw_duration(kernel_.random(), Duration{0}, latency_max_));
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
  }
  running_ = false;
}

Duration draw_duration(Random& random, Duration low, Duration high) {
  if (high <= low) return low;
  const auto width = static_cast<std::uint64_t>((high - low).count()) + 1;
  return low + Duration(static_cast<Duration::rep>(random.below(width)));
}

}  // namespace newmoon::sim
