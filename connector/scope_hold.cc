#include "connector/scope_hold.h"

#include <optional>
#include <utility>

#include "base/log.h"
#include "hash/scope_text.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "scope_hold";
constexpr Duration kKeepInterval = std::chrono::seconds(1);

}  // namespace

ScopeHold::ScopeHold(Options options, KvStore& store, Clock& clock, Executor& executor)
    : options_(std::move(options)), store_(store), clock_(clock), executor_(executor) {}

void ScopeHold::keep(const Fence& fence, const std::function<std::set<ScopeId>()>& busy) {
  const Time now = clock_.now();
  if (fence.epoch() == kept_epoch_ && now < next_keep_) return;
  std::map<ScopeId, std::string> wanted;
  for (const ScopeId& scope : busy()) wanted.emplace(scope, "");
  if (fence.scope()) wanted[*fence.scope_id()] = describe(*fence.scope());
  want(std::move(wanted));
  kept_epoch_ = fence.epoch();
  next_keep_ = now + kKeepInterval;
}

void ScopeHold::want(std::map<ScopeId, std::string> scopes) {
  // As a whole, or not: a scope that is in use must not be let go of in between.
  std::set<ScopeId> wanted;
  for (const auto& [scope, description] : scopes) wanted.insert(scope);
  {
    MutexLock lock(mutex_);
    wanted_.swap(wanted);
    for (auto& [scope, description] : scopes) {
      if (!description.empty()) descriptions_[scope] = std::move(description);
    }
    std::erase_if(descriptions_, [this](const auto& entry) NM_REQUIRES(mutex_) {
      return !wanted_.contains(entry.first);
    });
  }
  post();
}

void ScopeHold::release() {
  {
    MutexLock lock(mutex_);
    wanted_.clear();
  }
  post();
}

// A scope to let go of, or else one to take or renew.
std::optional<ScopeId> ScopeHold::next_change(Time now) const {
  for (const auto& [held, renew_at] : renew_at_) {
    if (!wanted_.contains(held)) return held;
  }
  for (const ScopeId& scope : wanted_) {
    const auto held = renew_at_.find(scope);
    if (held == renew_at_.end() || held->second <= now) return scope;
  }
  return std::nullopt;
}

// Posts the one task, unless it is out already or there is nothing to tell.
void ScopeHold::post() {
  {
    MutexLock lock(mutex_);
    if (posted_ || !next_change(clock_.now())) return;
    posted_ = true;
  }
  const Status posted = contain([this] { executor_.post([this] { run_one(); }); });
  if (!posted) end(posted);
}

// One scope a task, so that a store that is slow holds up nothing else on the executor.
void ScopeHold::run_one() {
  const Status told = contain([this] { tell_store(); });
  end(told);
  if (told) post();
}

void ScopeHold::tell_store() {
  const Time now = clock_.now();
  std::optional<ScopeId> scope;
  std::string description;
  Duration lease{};
  {
    MutexLock lock(mutex_);
    scope = next_change(now);
    if (scope && wanted_.contains(*scope)) {
      lease = options_.lease;
      description = descriptions_[*scope];
      // Also if it fails below: the next renewal tries again.
      renew_at_[*scope] = now + options_.renew_interval;
    } else if (scope) {
      renew_at_.erase(*scope);
    }
  }
  if (scope) {
    // Again at each renewal: a store that was restarted has forgotten it.
    if (!description.empty()) store_.describe_scope(*scope, description);
    const Status told = store_.hold_scope(*scope, options_.holder, lease);
    if (!told) {
      log(LogLevel::kInfo, kLog, "hold of scope " + scope->hex() + ": " + to_string(told.error()));
    }
  }
}

// The task has ended, or could not be posted. Should something have been thrown, the next
// look tries again.
void ScopeHold::end(const Status& task) {
  {
    MutexLock lock(mutex_);
    posted_ = false;
  }
  if (!task) thrown_.add(task.error());
}

}  // namespace newmoon
