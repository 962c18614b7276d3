#include "store/circuit_breaker_store.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace newmoon {
namespace {

// What a call came to, for the breaker.
template <class T>
Status outcome_of(const Result<T>& result) {
  return result ? Status() : std::unexpected(result.error());
}

// A batch went wrong as a whole if no item was answered: an error of some items is about
// these, as with a value that lies on a machine that is gone.
template <class T>
Status outcome_of(const std::vector<Result<T>>& results) {
  Status first;
  for (const Result<T>& result : results) {
    const Status status = outcome_of(result);
    if (!CircuitBreaker::is_unreachable(status)) return {};
    if (first) first = status;
  }
  return first;
}

// A call that was admitted. One that ends by an exception has not answered.
class NotedCall {
 public:
  NotedCall(CircuitBreaker& breaker, CircuitBreaker::Admission admission, Clock& clock)
      : breaker_(breaker), admission_(admission), clock_(clock) {}
  ~NotedCall() { breaker_.note(admission_, clock_.now(), outcome); }
  NotedCall(const NotedCall&) = delete;
  NotedCall& operator=(const NotedCall&) = delete;

  // As long as a string may be that takes no memory: an admission without an end would be the
  // only trial for ever.
  Status outcome = fail(Code::kUnavailable, "broken off");

 private:
  CircuitBreaker& breaker_;
  const CircuitBreaker::Admission admission_;
  Clock& clock_;
};

}  // namespace

CircuitBreakerStore::CircuitBreakerStore(std::unique_ptr<KvStore> inner, std::string name,
                                         Clock& clock, const CircuitBreaker::Options& options)
    : inner_(std::move(inner)), clock_(clock), breaker_(std::move(name), options) {}

void CircuitBreakerStore::probe() {
  breaker_.begin_ping(clock_.now());
  const Status pinged = inner_->ping();
  breaker_.end_ping(clock_.now(), pinged);
  if (pinged) make_up_for_purges();
}

void CircuitBreakerStore::start_probing(Duration interval) {
  ticker_ = std::make_unique<Ticker>("nm-store-ping", interval, [this] { probe(); });
}

template <class Work>
auto CircuitBreakerStore::call(Work work) -> std::invoke_result_t<Work> {
  const std::optional<CircuitBreaker::Admission> admission = breaker_.admit(clock_.now());
  if (!admission) return std::unexpected(breaker_.refusal());
  NotedCall noted(breaker_, *admission, clock_);
  auto result = work();
  noted.outcome = outcome_of(result);
  return result;
}

// Batches come one result an item, which call() cannot refuse.
std::vector<Status> CircuitBreakerStore::put(std::span<const PutItem> items) {
  const std::optional<CircuitBreaker::Admission> admission = breaker_.admit(clock_.now());
  if (!admission) {
    return std::vector<Status>(items.size(), fail(Code::kBusy, breaker_.refusal().message));
  }
  NotedCall noted(breaker_, *admission, clock_);
  std::vector<Status> statuses = inner_->put(items);
  noted.outcome = outcome_of(statuses);
  return statuses;
}

std::vector<Result<GetValue>> CircuitBreakerStore::get(std::span<const GetItem> items) {
  const std::optional<CircuitBreaker::Admission> admission = breaker_.admit(clock_.now());
  if (!admission) {
    return std::vector<Result<GetValue>>(items.size(),
                                         fail(Code::kMiss, breaker_.refusal().message));
  }
  NotedCall noted(breaker_, *admission, clock_);
  std::vector<Result<GetValue>> values = inner_->get(items);
  noted.outcome = outcome_of(values);
  return values;
}

Result<std::size_t> CircuitBreakerStore::hit_prefix(const ScopeId& scope,
                                                    std::span<const Shard> shards,
                                                    std::span<const BlockHash> blocks) {
  const std::optional<CircuitBreaker::Admission> admission = breaker_.admit(clock_.now());
  if (!admission) return 0;
  NotedCall noted(breaker_, *admission, clock_);
  Result<std::size_t> hits = inner_->hit_prefix(scope, shards, blocks);
  noted.outcome = outcome_of(hits);
  return hits;
}

Status CircuitBreakerStore::remove(const Key& key) {
  return call([&] { return inner_->remove(key); });
}

Status CircuitBreakerStore::purge_scope(const ScopeId& scope, bool for_good) {
  const Status purged = call([&] { return inner_->purge_scope(scope, for_good); });
  if (for_good && CircuitBreaker::is_unreachable(purged)) owe_purge(scope);
  return purged;
}

void CircuitBreakerStore::owe_purge(const ScopeId& scope) {
  const MutexLock lock(mutex_);
  if (owed_purges_.size() == kOwedPurgesMax) owed_purges_.pop_front();
  owed_purges_.push_back(scope);
}

// The first that fails ends it: it is owed again, and so are those after it.
void CircuitBreakerStore::make_up_for_purges() {
  while (true) {
    ScopeId scope;
    {
      const MutexLock lock(mutex_);
      if (owed_purges_.empty()) return;
      scope = owed_purges_.front();
      owed_purges_.pop_front();
    }
    if (!purge_scope(scope, true)) return;
  }
}

void CircuitBreakerStore::describe_scope(const ScopeId& scope, const std::string& description) {
  // It has no answer from which to learn anything.
  if (breaker_.figures().state == CircuitBreaker::State::kClosed) {
    inner_->describe_scope(scope, description);
  }
}

Status CircuitBreakerStore::hold_scope(const ScopeId& scope, const std::string& holder,
                                       Duration lease) {
  return call([&] { return inner_->hold_scope(scope, holder, lease); });
}

Result<std::uint64_t> CircuitBreakerStore::remove_all() {
  return call([&] { return inner_->remove_all(); });
}

Status CircuitBreakerStore::ping() {
  return call([&] { return inner_->ping(); });
}

Result<StoreStats> CircuitBreakerStore::stats() {
  Result<StoreStats> stats = call([&] { return inner_->stats(); });
  if (!stats) return stats;
  const CircuitBreaker::Figures figures = breaker_.figures();
  stats->breaker_opens = figures.opens;
  stats->calls_without_backend = figures.refused_calls;
  return stats;
}

Result<std::vector<ScopeUsage>> CircuitBreakerStore::list_scopes() {
  return call([&] { return inner_->list_scopes(); });
}

}  // namespace newmoon
