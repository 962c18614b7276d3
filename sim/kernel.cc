#include "sim/kernel.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "model/toy_model.h"

namespace newmoon::sim {
namespace {

constexpr std::uint64_t kLooksMax = 2'000'000;
constexpr std::uint64_t kDrainEventsMax = 200'000;

}  // namespace

Kernel::Kernel(std::uint64_t seed, FiberPool& fibers, TraceSink trace)
    : seed_(seed),
      fibers_(fibers),
      trace_(std::move(trace)),
      random_(toy::mix(seed ^ 0x73696d)),
      ties_(toy::mix(seed ^ 0x746965)) {}

Kernel::~Kernel() {
  for (Slot& slot : slots_) {
    if (slot.fiber && slot.fiber->idle()) fibers_.release(std::move(slot.fiber));
  }
}

bool Kernel::later(const Event& a, const Event& b) {
  if (a.when != b.when) return a.when > b.when;
  if (a.tie != b.tie) return a.tie > b.tie;
  return a.sequence > b.sequence;
}

void Kernel::post_at(Time when, std::function<void()> callback) {
  events_.push_back({std::max(when, now_), static_cast<std::uint32_t>(ties_.next()),
                     next_sequence_++, std::move(callback)});
  std::push_heap(events_.begin(), events_.end(), later);
}

std::size_t Kernel::free_slot() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].fiber) return i;
  }
  slots_.emplace_back();
  return slots_.size() - 1;
}

void Kernel::spawn(std::function<void()> body) {
  const std::size_t index = free_slot();
  slots_[index].fiber = fibers_.acquire();
  slots_[index].fiber->assign(std::move(body));
  post([this, index] { resume(index); });
}

void Kernel::resume(std::size_t index) {
  const std::size_t before = std::exchange(current_, index);
  Fiber& fiber = *slots_[index].fiber;
  fiber.resume();
  current_ = before;
  if (fiber.idle()) fibers_.release(std::move(slots_[index].fiber));
}

void Kernel::end_wait(std::size_t index, std::uint64_t wait_id, bool woken) {
  if (slots_[index].wait_id != wait_id) return;  // it ended before
  slots_[index].wait_id = 0;
  slots_[index].woken = woken;
  resume(index);
}

bool Kernel::park(Time deadline, std::uint64_t wait_id) {
  const std::size_t index = current_;
  slots_[index].wait_id = wait_id;
  slots_[index].endless = deadline == kNever;
  if (!slots_[index].endless || draining_) {
    post_at(slots_[index].endless ? now_ : deadline,
            [this, index, wait_id] { end_wait(index, wait_id, false); });
  }
  slots_[index].fiber->suspend();
  return slots_[index].woken;
}

bool Kernel::wait(WaitList& list, Time deadline) {
  if (!in_fiber() || deadline <= now_) return false;
  const std::uint64_t wait_id = next_wait_id_++;
  list.waiters_.push_back({current_, wait_id});
  const bool woken = park(deadline, wait_id);
  std::erase_if(list.waiters_,
                [wait_id](const WaitList::Waiter& w) { return w.wait_id == wait_id; });
  return woken;
}

void Kernel::wake_all(WaitList& list) {
  for (const WaitList::Waiter waiter : list.waiters_) {
    post([this, waiter] { end_wait(waiter.fiber, waiter.wait_id, true); });
  }
  list.waiters_.clear();
}

void Kernel::sleep_until(Time deadline) {
  if (!in_fiber() || deadline <= now_) return;
  park(deadline, next_wait_id_++);
}

bool Kernel::run_next(Time limit) {
  if (events_.empty() || events_.front().when > limit) return false;
  std::pop_heap(events_.begin(), events_.end(), later);
  Event event = std::move(events_.back());
  events_.pop_back();
  now_ = event.when;
  ++event_count_;
  looks_ = 0;
  event.callback();
  return true;
}

void Kernel::run(Time limit, const std::function<bool()>& done,
                 const std::function<void()>& after_each) {
  while (!done() && run_next(limit)) after_each();
}

bool Kernel::drain() {
  draining_ = true;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::uint64_t wait_id = slots_[i].wait_id;
    if (wait_id == 0 || !slots_[i].endless) continue;
    post([this, i, wait_id] { end_wait(i, wait_id, false); });
  }
  for (std::uint64_t i = 0; i < kDrainEventsMax && run_next(kNever); ++i) {
  }
  return std::ranges::none_of(slots_, [](const Slot& slot) { return slot.fiber != nullptr; });
}

void Kernel::trace(std::string_view what, std::initializer_list<std::uint64_t> arguments) {
  std::uint64_t hash = toy::mix(history_hash_ + static_cast<std::uint64_t>(now_.count()));
  for (const char c : what) hash = hash * 31 + static_cast<unsigned char>(c);
  for (const std::uint64_t argument : arguments) hash = toy::mix(hash ^ argument);
  history_hash_ = hash;
  if (trace_) trace_(now_, what, arguments);
}

void Kernel::note_look() {
  if (++looks_ < kLooksMax) return;
  std::fprintf(stderr, "sim: seed %llu: code looks at the clock without end and never waits\n",
               static_cast<unsigned long long>(seed_));
  std::abort();
}

Time SimClock::now() const {
  kernel_.note_look();
  return kernel_.now();
}

}  // namespace newmoon::sim
