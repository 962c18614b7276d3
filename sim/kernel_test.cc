#include "sim/kernel.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/task_queue.h"

namespace newmoon::sim {
namespace {

using std::chrono::milliseconds;

void run_all(Kernel& kernel) {
  kernel.run(kNever, [] { return false; }, [] {});
}

TEST(KernelTest, EventsRunInOrderOfTime) {
  FiberPool fibers;
  Kernel kernel(1, fibers, nullptr);
  std::vector<int> order;
  kernel.post_at(milliseconds(2), [&] { order.push_back(2); });
  kernel.post_at(milliseconds(1), [&] { order.push_back(1); });
  run_all(kernel);
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_EQ(kernel.now(), Time(milliseconds(2)));
}

TEST(KernelTest, SleepingFibersInterleave) {
  FiberPool fibers;
  Kernel kernel(1, fibers, nullptr);
  std::string order;
  for (const char name : {'a', 'b'}) {
    kernel.spawn([&, name] {
      for (int i = 0; i < 3; ++i) {
        kernel.sleep_for(milliseconds(name == 'a' ? 2 : 3));
        order += name;
      }
    });
  }
  run_all(kernel);
  EXPECT_TRUE(order == "abaabb" || order == "ababab") << order;
  EXPECT_TRUE(kernel.drain());
}

TEST(KernelTest, WaitEndsByWakeOrDeadline) {
  FiberPool fibers;
  Kernel kernel(1, fibers, nullptr);
  Kernel::WaitList list;
  bool woken = false;
  bool late = true;
  kernel.spawn([&] {
    woken = kernel.wait(list, kNever);
    late = kernel.wait(list, kernel.now() + milliseconds(5));
  });
  kernel.post_at(milliseconds(3), [&] { kernel.wake_all(list); });
  run_all(kernel);
  EXPECT_TRUE(woken);
  EXPECT_FALSE(late);
  EXPECT_EQ(kernel.now(), Time(milliseconds(8)));
}

TEST(KernelTest, DrainEndsAnEndlessWait) {
  FiberPool fibers;
  Kernel kernel(1, fibers, nullptr);
  Kernel::WaitList list;
  bool ended = false;
  kernel.spawn([&] {
    kernel.wait(list, kNever);
    ended = true;
  });
  run_all(kernel);
  EXPECT_FALSE(ended);
  EXPECT_TRUE(kernel.drain());
  EXPECT_TRUE(ended);
}

TEST(KernelTest, TheSeedDecidesTiesAndHistory) {
  const auto history = [](std::uint64_t seed) {
    FiberPool fibers;
    Kernel kernel(seed, fibers, nullptr);
    for (std::uint64_t i = 0; i < 20; ++i) kernel.post([&, i] { kernel.trace("event", {i}); });
    run_all(kernel);
    return kernel.history_hash();
  };
  EXPECT_EQ(history(7), history(7));
  EXPECT_NE(history(7), history(8));
}

TEST(TaskQueueTest, RunsTasksInOrderThoughTheySleep) {
  FiberPool fibers;
  Kernel kernel(1, fibers, nullptr);
  SimTaskQueue queue(kernel, milliseconds(1));
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    queue.post([&, i] {
      kernel.sleep_for(milliseconds(3 - i));
      order.push_back(i);
    });
  }
  run_all(kernel);
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
  EXPECT_TRUE(queue.idle());
}

}  // namespace
}  // namespace newmoon::sim
