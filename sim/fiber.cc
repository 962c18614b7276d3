#include "sim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define NM_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NM_SIM_ASAN 1
#endif
#endif
#ifdef NM_SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#define NM_SIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NM_SIM_TSAN 1
#endif
#endif
#ifdef NM_SIM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace newmoon::sim {
namespace {

// Committed page by page as it is used; sanitizers make frames larger.
#if defined(NM_SIM_ASAN) || defined(NM_SIM_TSAN)
constexpr std::size_t kStackBytes = std::size_t{1} << 20;
#else
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
#endif
constexpr std::size_t kGuardBytes = 4096;

}  // namespace

Fiber::Fiber() {
  mapping_ = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED || mprotect(mapping_, kGuardBytes, PROT_NONE) != 0) {
    std::perror("mmap of a fiber stack");
    std::abort();
  }
#ifdef NM_SIM_TSAN
  inside_thread_ = __tsan_create_fiber(0);
#endif
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = static_cast<char*>(mapping_) + kGuardBytes;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::entry), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
}

Fiber::~Fiber() {
#ifdef NM_SIM_TSAN
  __tsan_destroy_fiber(inside_thread_);
#endif
  munmap(mapping_, kGuardBytes + kStackBytes);
}

void Fiber::entry(unsigned high, unsigned low) {
  const auto self = std::uintptr_t{high} << 32 | low;
  reinterpret_cast<Fiber*>(self)->run();
}

void Fiber::run() {
#ifdef NM_SIM_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &outside_bottom_, &outside_bytes_);
#endif
  while (true) {
    body_();
    body_ = nullptr;
    suspend();
  }
}

void Fiber::switch_to(ucontext_t& from, ucontext_t& to, [[maybe_unused]] void** fake_stack,
                      [[maybe_unused]] const void* bottom, [[maybe_unused]] std::size_t bytes) {
#ifdef NM_SIM_ASAN
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
#endif
  swapcontext(&from, &to);
}

void Fiber::resume() {
#ifdef NM_SIM_TSAN
  outside_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(inside_thread_, 0);
#endif
  switch_to(outside_, inside_, &outside_fake_stack_, inside_.uc_stack.ss_sp, kStackBytes);
#ifdef NM_SIM_ASAN
  __sanitizer_finish_switch_fiber(outside_fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
#ifdef NM_SIM_TSAN
  __tsan_switch_to_fiber(outside_thread_, 0);
#endif
  switch_to(inside_, outside_, &inside_fake_stack_, outside_bottom_, outside_bytes_);
#ifdef NM_SIM_ASAN
  __sanitizer_finish_switch_fiber(inside_fake_stack_, &outside_bottom_, &outside_bytes_);
#endif
}

std::unique_ptr<Fiber> FiberPool::acquire() {
  if (idle_.empty()) return std::make_unique<Fiber>();
  std::unique_ptr<Fiber> fiber = std::move(idle_.back());
  idle_.pop_back();
  return fiber;
}

void FiberPool::release(std::unique_ptr<Fiber> fiber) { idle_.push_back(std::move(fiber)); }

}  // namespace newmoon::sim
