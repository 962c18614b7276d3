#include "store/mooncake/scope_gate.h"

#include <algorithm>
#include <string>

namespace newmoon {
namespace {

// Between two passes over a scope that was not found empty.
constexpr Duration kPassPause = std::chrono::milliseconds(20);

}  // namespace

Result<std::unique_ptr<ScopeGate::Put>> ScopeGate::begin_put(const ScopeId& scope, Time deadline) {
  MutexLock lock(mutex_);
  while (true) {
    if (fenced_.find(scope) != nullptr) {
      return fail(Code::kFenced, "scope " + scope.hex() + " was purged for good: drop the put");
    }
    if (!pending_.contains(scope)) break;
    const Duration left = deadline - clock_.now();
    if (left <= Duration::zero()) {
      return fail(Code::kBusy, "scope " + scope.hex() + " is still being purged");
    }
    changed_.wait_for(mutex_, left);
  }
  // In use again: what comes later is not to be purged.
  rechecks_.erase(scope);
  auto put = std::make_unique<Put>(scope);
  ++puts_[scope];
  put->begun(shared_from_this());
  return put;
}

void ScopeGate::end_put(const ScopeId& scope) {
  MutexLock lock(mutex_);
  const auto put = puts_.find(scope);
  if (--put->second > 0) return;
  puts_.erase(put);
  if (pending_.contains(scope)) changed_.notify_all();
}

bool ScopeGate::is_hidden(const ScopeId& scope) {
  MutexLock lock(mutex_);
  return pending_.contains(scope) || fenced_.find(scope) != nullptr;
}

void ScopeGate::purge(const ScopeId& scope, bool for_good) {
  MutexLock lock(mutex_);
  if (for_good) fenced_.set(scope, true);
  Purge& purge = pending_[scope];
  purge.due = clock_.now();
  purge.renewed = true;
  rechecks_.erase(scope);
  changed_.notify_all();
}

ScopeGate::Counts ScopeGate::counts() {
  MutexLock lock(mutex_);
  return {.pending = pending_.size(),
          .rechecks = rechecks_.size(),
          .recheck_left = recheck_left(clock_.now()),
          .removed = removed_};
}

Duration ScopeGate::recheck_left(Time now) const {
  Duration longest{0};
  for (const auto& [scope, recheck] : rechecks_) {
    Duration left = recheck.due - now;
    for (std::size_t i = recheck.next_delay; i < options_.recheck_delays.size(); ++i) {
      left += options_.recheck_delays[i];
    }
    longest = std::max(longest, left);
  }
  return longest;
}

void ScopeGate::collect(Time now, std::size_t scopes_max, std::vector<Work>& work) {
  for (auto& [scope, purge] : pending_) {
    if (work.size() == scopes_max) return;
    if (purge.due > now || puts_.contains(scope)) continue;
    purge.renewed = false;
    work.push_back({.scope = scope});
  }
  for (const auto& [scope, recheck] : rechecks_) {
    if (work.size() == scopes_max) return;
    if (recheck.due <= now) work.push_back({.scope = scope, .recheck = true});
  }
}

Time ScopeGate::next_due() const {
  Time due = Time::max();
  for (const auto& [scope, purge] : pending_) {
    if (!puts_.contains(scope)) due = std::min(due, purge.due);
  }
  for (const auto& [scope, recheck] : rechecks_) due = std::min(due, recheck.due);
  return due;
}

std::vector<ScopeGate::Work> ScopeGate::next_work(std::size_t scopes_max) {
  std::vector<Work> work;
  MutexLock lock(mutex_);
  while (!stopping_) {
    const Time now = clock_.now();
    collect(now, scopes_max, work);
    if (!work.empty()) return work;
    const Time due = next_due();
    if (due == Time::max()) {
      changed_.wait(mutex_);
    } else {
      changed_.wait_for(mutex_, due - now);
    }
  }
  return work;
}

void ScopeGate::schedule_recheck(const ScopeId& scope, std::size_t delay) {
  if (delay >= options_.recheck_delays.size()) {
    rechecks_.erase(scope);
    return;
  }
  rechecks_[scope] = {.due = clock_.now() + options_.recheck_delays[delay],
                      .next_delay = delay + 1};
}

void ScopeGate::finish(std::span<const Work> work, std::uint64_t removed) {
  MutexLock lock(mutex_);
  removed_ += removed;
  for (const Work& item : work) {
    if (item.recheck) {
      const auto recheck = rechecks_.find(item.scope);
      if (recheck == rechecks_.end()) continue;
      schedule_recheck(item.scope, recheck->second.next_delay);
      continue;
    }
    const auto purge = pending_.find(item.scope);
    if (purge == pending_.end() || purge->second.renewed) continue;
    if (removed > 0) {
      purge->second.due = clock_.now() + kPassPause;
      continue;
    }
    schedule_recheck(item.scope, 0);
    pending_.erase(purge);
  }
  changed_.notify_all();
}

void ScopeGate::put_off(std::span<const Work> work, Duration delay) {
  MutexLock lock(mutex_);
  const Time due = clock_.now() + delay;
  for (const Work& item : work) {
    if (const auto purge = pending_.find(item.scope); purge != pending_.end()) {
      purge->second.due = due;
    }
    if (const auto recheck = rechecks_.find(item.scope); recheck != rechecks_.end()) {
      recheck->second.due = due;
    }
  }
}

bool ScopeGate::pause(Duration duration) {
  const Time until = clock_.now() + duration;
  MutexLock lock(mutex_);
  for (Time now = clock_.now(); !stopping_ && now < until; now = clock_.now()) {
    changed_.wait_for(mutex_, until - now);
  }
  return !stopping_;
}

void ScopeGate::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

}  // namespace newmoon
