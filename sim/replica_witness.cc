// What a replica's witnesses see, and what they object to.
#include <algorithm>
#include <functional>
#include <string>

#include "sim/replica_parts.h"

namespace newmoon::sim {
namespace {

using std::chrono::milliseconds;

std::uint64_t short_id(const std::optional<ScopeId>& scope) {
  return scope ? load_le<std::uint64_t>(scope->bytes.data()) : 0;
}

}  // namespace

void Replica::watch_rank(RankParts& rank) {
  const std::size_t number = rank.rank.options().rank;
  rank.rank.on_step = [this, number](const SchedulerOutput& step) { note_step(number, step); };
  rank.rank.on_write = [this](bool announced) { note_write(announced); };
  rank.store.on_transfer = [&rank](std::span<const std::uint8_t* const> addresses) {
    rank.memory.check_admitted(addresses, rank.worker.status().floor);
  };
  rank.store.on_put = [this, &rank] {
    if (!engine_.alive && rank.process.alive) verdict().saw(Overlap::kZombiePut);
  };
  rank.store.on_loaded = [this](const Key& key) {
    if (returned_.contains(key.scope)) verdict().saw(Overlap::kReturnHit);
  };
  rank.store.on_remove_all = [this] {
    if (!world_.plan.remove_all) verdict().violation("W4", "the whole store is removed");
  };
}

void Replica::watch_engine() {
  transport_.on_wait = [this] { check_may_wait(); };
  transport_.on_lost = [this](std::size_t, const Frames& frames) {
    if (as_text(frames.front()) == FENCE_MSG) verdict().saw(Overlap::kFenceLost);
  };
  transport_.on_fault = [this] { verdict().note_fault(); };
  transport_.on_repeated = [this](std::size_t) { verdict().saw(Overlap::kAnswerTwice); };
  transport_.on_answer = [this](Duration after) {
    if (after > world_.plan.lookup_timeout) verdict().saw(Overlap::kAnswerLate);
  };
  purge_store_.on_call = [this] {
    if (!purge_queue_.idle()) return;  // behind the engine's back, as it should be
    verdict().violation("W3", "the engine's loop waits for the store");
  };
  executor_->on_submit = [this](const SchedulerOutput& step) { note_submitted(step); };
}

// --- fence and scope ---

void Replica::note_epoch() {
  seen_epoch_ = fence_.epoch();
  unfenced_write_ = false;
  epoch_has_run_ = false;
  kernel().trace("epoch", {number_, seen_epoch_, short_id(fence_.scope_id())});
  std::uint64_t slowest = ~std::uint64_t{0};
  std::uint64_t quickest = 0;
  for (const auto& rank : ranks_) {
    slowest = std::min(slowest, rank->rank.steps_ended());
    quickest = std::max(quickest, rank->rank.steps_ended());
    rank->memory.note_cancelled();
  }
  if (quickest > slowest) verdict().saw(Overlap::kLateRank);
  if (fence_.scope_id() == seen_scope_) return;
  seen_scope_ = fence_.scope_id();
  scheduled_since_adopt_ = false;
  if (seen_scope_) note_scope();
}

// A scope was opened: for these weights, of these ranks, now.
void Replica::note_scope() {
  const Scope& scope = *fence_.scope();
  world_.oracle.learn(scope, weights());
  if (!opened_.insert(*seen_scope_).second) returned_.insert(*seen_scope_);
  if (executor_->moving()) {
    verdict().violation("SEAL", "a scope is opened while weights are moving");
  }
  const std::vector<std::uint64_t>& writes = fence_.bound_writes();
  if (std::ranges::adjacent_find(writes, std::not_equal_to{}) != writes.end()) {
    verdict().saw(Overlap::kUnequalWrites);
    if (!scope.is_unique()) {
      verdict().violation("SEAL", "weights have a name, and ranks counted different writes");
    }
  }
  if (const auto* digest = std::get_if<DigestIdentity>(&scope.weights)) {
    if (*digest != digest_of(weights())) {
      verdict().violation("SEAL", "a scope is opened with a digest that the weights do not have");
    }
  } else if (const auto* unique = std::get_if<UniqueIdentity>(&scope.weights)) {
    if (unique->incarnation != incarnation_ || unique->epoch != fence_.epoch()) {
      verdict().violation("SEAL", "a unique scope does not hold this incarnation and epoch");
    }
  }
}

void Replica::note_write(bool announced) {
  ++write_count_;
  history_.emplace_back(kernel().now(), weights());
  if (announced && !fence_.sealed()) {
    verdict().violation("SEAL", "weights are written while a scope is open");
  }
  if (!announced && (epoch_has_run_ || !fence_.sealed())) {
    unfenced_write_ = true;
    steps_since_write_ = 0;
  }
  on_write(announced);
}

// What a router hears of this engine: nothing of an epoch that is over, and of each
// fence at once, however idle the engine is.
void Replica::note_events() {
  if (!world_.plan.kv_events) return;
  for (const KvEvent& event : core_->take_events()) {
    const Epoch epoch = std::visit([](const auto& said) { return said.epoch; }, event);
    if (std::holds_alternative<AllBlocksCleared>(event)) {
      events_epoch_ = epoch;
    } else if (events_epoch_ != 0 && epoch != events_epoch_) {
      verdict().violation("events", "a KV event tells of a block of another epoch");
    }
  }
  if (events_epoch_ != 0 && events_epoch_ != fence_.epoch()) {
    verdict().violation("events", "a fence is not told to routers at once");
  }
}

void Replica::note_purge(const Scope& scope) {
  verdict().saw(Overlap::kUniquePurge);
  const auto* unique = std::get_if<UniqueIdentity>(&scope.weights);
  if (unique == nullptr) {
    verdict().violation("PURGE", "a scope is purged that is not unique");
  } else if (unique->incarnation != incarnation_) {
    verdict().violation("W4", "another engine's scope is purged");
  } else if (scope.id() == fence_.scope_id()) {
    verdict().violation("PURGE", "the current scope is purged");
  }
}

// --- steps ---

void Replica::note_submitted(const SchedulerOutput& step) {
  after_event();
  writes_at_submit_[step.step_id] = write_count_;
  const bool works = !step.input.sequences.empty() || !step.connector.loads.empty();
  if (!works) return;
  scheduled_since_adopt_ = true;
  resets_in_a_row_ = 0;
  if (fence_.sealed()) verdict().saw(Overlap::kSealedStep);
  check_write_is_met();
  epoch_has_run_ = true;
}

// Rule BIND: the first step that is submitted after a write meets it, so that its output moves
// the epoch, sealed or not; else the engine's own cache outlives the weights.
void Replica::check_write_is_met() {
  if (!unfenced_write_ || crashed_) return;
  if (steps_since_write_++ < world_.plan.steps_in_flight_max) return;
  verdict().violation("BIND",
                      "a step ended after a write that nobody announced, and no fence came");
}

void Replica::note_step(std::size_t rank, const SchedulerOutput& step) {
  if (step.input.sequences.empty()) return;
  if (step.epoch < fence_.epoch()) verdict().saw(Overlap::kStepAcrossFence);
  if (writes_at_submit_[step.step_id] < write_count_) verdict().saw(Overlap::kStepAcrossWrite);
  if (!executor_->moving()) return;
  const RankWeights& mine = ranks_[rank]->rank.weights();
  const bool split =
      std::ranges::any_of(ranks_, [&](const auto& other) { return other->rank.weights() != mine; });
  if (split) verdict().saw(Overlap::kSplitWrite);
}

void Replica::note_finished(const RequestId& id) {
  for (const auto& rank : ranks_) rank->memory.note_finished(id);
}

// --- answers ---

// Rule FIRST (contract W3): whoever waits for ranks has fenced before, and only
// resets wait.
void Replica::check_may_wait() {
  if (fence_.epoch() <= epoch_before_call_) {
    verdict().violation("W3", "the engine waits for its ranks before it has fenced");
  }
  if (writes_weights_) verdict().violation("W3", "a seal or an adopt waits for the network");
}

// Whether a rank has an excuse for not answering: now, or when it was asked before.
bool Replica::answers_may_fail() const {
  const NetworkFaults& network = world_.plan.network;
  return crashed_ || network.loss_percent > 0 || network.slow_percent > 0 ||
         network.cut_percent > 0 || network.repeat_percent > 0;
}

void Replica::check_in_time(std::string_view what, Time deadline) {
  if (kernel().now() <= deadline + milliseconds(1)) return;
  verdict().violation("W5", std::string(what) + " was answered after its deadline");
}

// Right after a reset: the ranks that are said to have answered have fenced.
void Replica::check_acks(const CacheResetAnswer& answer) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    // A rank that took the message for a bad one is named in the error.
    const bool silent = std::ranges::find(answer.silent_ranks, r) != answer.silent_ranks.end() ||
                        answer.error.find("rank " + std::to_string(r) + ":") != std::string::npos;
    if (silent || !ranks_[r]->process.alive) continue;
    if (ranks_[r]->worker.status().floor < fence_.epoch()) {
      verdict().violation("W5", "a reset says that a rank has fenced, and it has not");
    }
  }
}

// Right after a reset in mode remove_all, unless somebody put behind its back.
void Replica::check_emptied(const CacheResetAnswer& answer) {
  if (!world_.plan.remove_all || !answer.success) return;
  if (crashed_ || !world_.plan.store_rules.empty()) return;
  const Result<StoreStats> stats = world_.store.truth.stats();
  if (stats && stats->blocks > 0) {
    verdict().violation("W5", "remove_all succeeded, and the store is not empty");
  }
}

void Replica::check_reset(const CacheResetAnswer& answer, Epoch fenced_after) {
  kernel().trace("reset", {number_, answer.success, answer.degraded, answer.silent_ranks.size(),
                           static_cast<std::uint64_t>(answer.scope)});
  if (answer.degraded) verdict().saw(Overlap::kDegradedReset);
  if (fence_.epoch() <= fenced_after) verdict().violation("FIRST", "a reset did not fence");
  if (world_.plan.remove_all) return;
  if (!answer.success) {
    verdict().violation("W5", "a reset says that stale KV can be read: " + answer.error);
  }
  if (!answer.degraded && !answer.silent_ranks.empty()) {
    verdict().violation("W5", "a rank was silent, and a reset does not say that it is degraded");
  }
}

void Replica::check_outcome(const CacheResetAnswer& answer, const std::optional<ScopeId>& before) {
  if (answer.scope == ScopeOutcome::kKept) {
    verdict().saw(Overlap::kScopeKept);
    if (!before || fence_.scope_id() != before || fence_.scope()->is_unique()) {
      verdict().violation("W8", "a reset says that it kept a verified scope, and did not");
    }
  } else if ((answer.scope == ScopeOutcome::kSealed) != fence_.sealed()) {
    verdict().violation("W5", "a reset is wrong about being sealed");
  } else if (answer.scope == ScopeOutcome::kNew && fence_.scope_id() == before) {
    verdict().violation("W8", "a reset says that the scope is new, and it is not");
  }
}

void Replica::check_pause(const PauseAnswer& answer, Epoch fenced_after) {
  kernel().trace(
      "paused", {number_, answer.complete, answer.running_requests.size(), answer.steps_in_flight});
  if (answer.complete && executor_->forward_steps_in_flight() > 0) {
    verdict().violation("W5", "a pause says that it is complete, and a step is in flight");
  }
  if (!answer.complete && answer.running_requests.empty() && answer.steps_in_flight == 0) {
    verdict().violation("W5", "a pause is not complete, and names nothing that runs");
  }
  if (answer.reset) check_reset(*answer.reset, fenced_after);
}

void Replica::check_at_rest() {
  const std::string name = "replica " + std::to_string(number_);
  if (core_->has_work()) verdict().violation("progress", name + " still has work");
  if (pool_.pinned_count() > 0) verdict().violation("PIN", name + " still pins blocks");
  if (pool_.used_count() > 0) verdict().violation("STEP", name + " still holds blocks");
  for (const auto& rank : ranks_) {
    if (rank->memory.jobs_outstanding() > 0) {
      verdict().violation("report", name + ": a rank never reported some job");
    }
    // Contract W7: a bad value is a miss, counted.
    if (rank->worker.stats().corrupt_blocks < rank->store.corrupt_delivered()) {
      verdict().violation("W7", name + ": a rank did not count a value that came back changed");
    }
  }
}

// --- state ---

bool Replica::has_work() const {
  return core_->has_work() || !commands_.empty() || !purge_queue_.idle();
}

bool Replica::has_loads() const {
  return std::ranges::any_of(ranks_,
                             [](const auto& rank) { return rank->memory.loads_outstanding(); });
}

WeightsByRank Replica::weights() const {
  WeightsByRank by_rank;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    by_rank.push_back(ranks_[r]->rank.weights().of_rank(r));
  }
  return by_rank;
}

std::vector<WeightsByRank> Replica::weights_since(Time since) const {
  std::vector<WeightsByRank> all;
  for (std::size_t i = 0; i < history_.size(); ++i) {
    const bool over = i + 1 < history_.size() && history_[i + 1].first < since;
    if (!over) all.push_back(history_[i].second);
  }
  return all;
}

std::vector<Shard> Replica::shards() const {
  std::vector<Shard> shards;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    shards.push_back({.tp = static_cast<std::uint16_t>(r)});
  }
  return shards;
}

}  // namespace newmoon::sim
