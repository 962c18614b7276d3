// Fibers: stacks that run blocking code until it blocks, then step aside. They let
// the simulator run production code, which sleeps and waits, on one thread.
//
// A pool and its fibers belong to one thread.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace newmoon::sim {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Gives an idle fiber its work; resume() starts it. `body` must not throw.
  void assign(std::function<void()> body) { body_ = std::move(body); }
  bool idle() const { return !body_; }

  // From outside: runs the body until it suspends or ends.
  void resume();
  // From within the body: back to whoever resumed it.
  void suspend();

 private:
  static void entry(unsigned high, unsigned low);
  void run();
  void switch_to(ucontext_t& from, ucontext_t& to, void** fake_stack, const void* bottom,
                 std::size_t bytes);

  std::function<void()> body_;
  void* mapping_ = nullptr;
  ucontext_t inside_{};
  ucontext_t outside_{};
  // AddressSanitizer is told of every change of stack.
  void* inside_fake_stack_ = nullptr;
  void* outside_fake_stack_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
  // And ThreadSanitizer, to which each fiber is a thread.
  [[maybe_unused]] void* inside_thread_ = nullptr;
  [[maybe_unused]] void* outside_thread_ = nullptr;
};

// Keeps the stacks of ended fibers for later ones.
class FiberPool {
 public:
  std::unique_ptr<Fiber> acquire();
  void release(std::unique_ptr<Fiber> fiber);  // REQUIRES: fiber->idle()

 private:
  std::vector<std::unique_ptr<Fiber>> idle_;
};

}  // namespace newmoon::sim
