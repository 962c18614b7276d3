// The cascade: what a fence does to requests, blocks and the external tier. The
// rules named here are those of docs/architecture.md.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/contain.h"
#include "base/log.h"
#include "engine/scheduler.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "scheduler";

}  // namespace

// Lets a request's KV go; the request stays. What a step or load in flight still uses
// stays taken until that has ended (rule STEP), and what it brings is dropped.
void Scheduler::drop_blocks(EngineRequest& request) {
  kv_.truncate(request, 0);
  if (connector_ != nullptr) connector_->scheduler().request_finished(request.input.id);
  if (request.load_id != 0) request.status = RequestStatus::kWaiting;
  request.load_id = 0;
  request.step_id = 0;
  request.num_external_tokens = 0;
}

void Scheduler::leave_slot(EngineRequest& request) {
  if (!request.slot) return;
  slot_taken_[static_cast<std::size_t>(*request.slot)] = false;
  request.slot.reset();
}

// A running request, back to the head of the queue; its output is kept.
void Scheduler::preempt(const RequestPtr& request) {
  drop_blocks(*request);
  request->restart = true;  // without memory for the queue, it starts anew where it is
  waiting_.push_front(request);
  leave_slot(*request);
  request->status = RequestStatus::kPreempted;
  ++request->counters.preemptions;
  std::erase(running_, request);
}

// The Fence has just moved. Every request that holds blocks is dealt with, whatever
// its status; rule BIRTH does the rest: what they keep is of an older epoch, so it is
// never found or published again.
Scheduler::FenceEffect Scheduler::after_fence(const std::optional<Scope>& left, Holders holders) {
  const bool was_half_done = std::exchange(fence_half_done_, true);
  pool_.reset(fence_.epoch());
  const auto keeps = [&](const EngineRequest& request) {
    if (request.load_id != 0) return false;  // rule ONE-LOAD: a cancelled load fails it all
    return holders == Holders::kKeep ||
           (holders == Holders::kRecomputeUnlessAsked && request.input.continue_across_update);
  };
  FenceEffect effect;
  const auto deal_with = [&](const RequestPtr& request) {
    if (!request->holds_blocks()) return;
    if (keeps(*request)) {
      ++effect.tainted;
      return;
    }
    ++effect.preempted;
    if (request->status == RequestStatus::kRunning) {
      preempt(request);
    } else {
      drop_blocks(*request);
    }
  };
  std::ranges::for_each(waiting_, deal_with);
  // Newest first, so that they keep their order at the head of the queue.
  const std::vector<RequestPtr> running(running_.rbegin(), running_.rend());
  std::ranges::for_each(running, deal_with);

  if (connector_ != nullptr) connector_->scheduler().on_fence();
  // Rule PURGE: nobody can return to a unique scope; a named one may be in use.
  // About memory only, so that a purge that cannot be begun is left out.
  if (left && left->is_unique() && purge_) (void)contain([&] { purge_(*left); });
  fence_half_done_ = was_half_done;
  return effect;
}

void Scheduler::seal(bool keep_requests) {
  const std::optional<Scope> left = fence_.seal();
  after_fence(left, keep_requests ? Holders::kKeep : Holders::kRecomputeUnlessAsked);
  // Weights may be new under the slots that go on: made anew from whole blocks.
  for (const RequestPtr& request : running_) request->restart = true;
}

void Scheduler::adopt(const std::optional<WeightsIdentity>& weights,
                      std::vector<std::uint64_t> weight_writes) {
  const std::optional<Scope> left = weights ? fence_.adopt(*weights, std::move(weight_writes))
                                            : fence_.adopt_unique(std::move(weight_writes));
  after_fence(left, Holders::kKeep);
}

CacheResetAnswer Scheduler::reset_prefix_cache(bool reset_running_requests, bool reset_connector,
                                               Time deadline, bool keep_verified) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  log(LogLevel::kDebug, kLog,
      std::string("reset_prefix_cache(reset_running_requests=") + flag(reset_running_requests) +
          ", reset_connector=" + flag(reset_connector) + ")");
  CacheResetAnswer answer;
  answer.steps.reserve(3);
  Time before = clock_.now();
  const auto lap = [&](std::string_view name) {
    const Time now = clock_.now();
    answer.steps.push_back({.name = name, .duration = now - std::exchange(before, now)});
  };
  // Rule FIRST: the fence, before anything that can fail. A caller that leaves the
  // connector alone did not ask for a cold external tier.
  const Fence::ResetResult fenced = fence_.reset(keep_verified || !reset_connector);
  answer.scope = fenced.outcome;
  // Its effects follow, whether there is memory for a line or not.
  (void)contain([&] {
    log(LogLevel::kDebug, kLog,
        "fence: epoch " + std::to_string(fence_.epoch()) + ", scope " +
            std::string(to_string(fenced.outcome)));
  });
  lap("fence");
  const FenceEffect effect =
      after_fence(fenced.left, reset_running_requests ? Holders::kRecompute : Holders::kKeep);
  answer.preempted = effect.preempted;
  answer.tainted_requests = effect.tainted;
  lap("requests");
  if (options_.reset_mode == ResetMode::kRemoveAll && effect.tainted > 0) {
    answer.success = false;
    answer.error = std::to_string(effect.tainted) + " requests hold blocks that are not freed yet";
  }
  if (reset_connector) {
    adopt_answer(reset_connector_cache(deadline), answer);
    lap("connector");
  }
  return answer;
}

void Scheduler::adopt_answer(const ResetAnswer& connector, CacheResetAnswer& answer) const {
  answer.success = answer.success && connector.success;
  answer.degraded = connector.degraded;
  answer.fenced = connector.fenced;
  answer.silent_ranks = connector.silent_ranks;
  answer.dropped_loads = connector.dropped_loads;
  answer.dropped_saves = connector.dropped_saves;
  answer.removed = connector.removed;
  if (!connector.error.empty()) {
    answer.error += (answer.error.empty() ? "" : "; ") + connector.error;
  }
}

ResetAnswer Scheduler::reset_connector_cache(Time deadline) {
  if (connector_ == nullptr) {
    log(LogLevel::kDebug, kLog, "reset_connector_cache: no connector, nothing to reset");
    return {};
  }
  log(LogLevel::kDebug, kLog, "reset_connector_cache()");
  if (std::optional<ResetAnswer> answer = connector_->reset_cache(deadline)) return *answer;
  ResetAnswer answer;
  answer.success = false;
  answer.error = "the connector cannot reset its cache";
  log(LogLevel::kWarning, kLog, "reset_connector_cache: " + answer.error);
  return answer;
}

void Scheduler::rank_died(std::size_t rank) {
  if (connector_ != nullptr) connector_->scheduler().rank_died(rank);
}

std::vector<KvEvent> Scheduler::take_events() {
  std::vector<KvEvent> events = pool_.take_events();
  if (connector_ == nullptr) return events;
  for (const StoredEvent& stored : connector_->scheduler().take_events()) {
    if (stored.epoch != fence_.epoch()) continue;
    events.emplace_back(BlockStored{.epoch = stored.epoch,
                                    .block_hash = stored.hash,
                                    .parent_block_hash = std::nullopt,
                                    .token_ids = {},
                                    .block_size = info_.block_size,
                                    .lora_name = {},
                                    .medium = kExternalMedium});
  }
  return events;
}

}  // namespace newmoon
