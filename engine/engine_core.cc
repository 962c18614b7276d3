// Requests, steps, pauses and resets; engine_core_weights.cc has sleep and weights.
#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace newmoon {

std::optional<PauseMode> parse_pause_mode(std::string_view name) {
  for (const PauseMode mode : {PauseMode::kAbort, PauseMode::kWait, PauseMode::kKeep}) {
    if (name == to_string(mode)) return mode;
  }
  return std::nullopt;
}

std::string_view to_string(PauseMode mode) {
  switch (mode) {
    case PauseMode::kAbort:
      return "abort";
    case PauseMode::kWait:
      return "wait";
    case PauseMode::kKeep:
      return "keep";
  }
  return "unknown";
}

EngineCore::EngineCore(Options options, Parts parts)
    : options_(std::move(options)),
      info_(parts.scheduler.info),
      fence_(parts.scheduler.fence),
      clock_(parts.scheduler.clock),
      executor_(parts.executor),
      scheduler_(options_.scheduler, std::move(parts.scheduler)),
      known_weights_(options_.identity, options_.name_space) {
  known_weights_.set_label(options_.weight_version);
}

Status EngineCore::start() {
  // With less, a prompt could find no chunk that leaves neither end too short.
  const int decodes_max = info_.sequences_max - 1;
  const int needed = decodes_max + 2 * std::max(1, info_.prefill_tokens_min) - 1;
  if (info_.sequences_max < 1 || info_.step_tokens_max < needed) {
    return fail(Code::kBadRequest, "model " + info_.name + ": " +
                                       std::to_string(info_.step_tokens_max) +
                                       " tokens a step are too few; at least " +
                                       std::to_string(needed) + " are needed");
  }
  const Result<WeightsReport> report =
      executor_.weights_report(options_.identity == IdentityMode::kDigest);
  if (report) known_weights_.bind_label(report->weight_writes);
  return adopt(report);
}

Status EngineCore::add_request(RequestInput input) {
  return scheduler_.add_request(std::move(input));
}

std::size_t EngineCore::abort_requests(std::span<const RequestId> ids) {
  return scheduler_.finish_requests(ids, RequestStatus::kFinishedAborted);
}

// --- the loop ---

std::vector<RequestOutput> EngineCore::step() {
  collect_outputs();
  settle();
  if (is_resident()) submit_steps();
  collect_outputs();
  return scheduler_.take_outputs();
}

void EngineCore::collect_outputs() {
  while (const std::optional<ModelRunnerOutput> output = executor_.poll()) {
    const bool was_open = !fence_.sealed();
    scheduler_.update_from_output(*output);
    if (!scheduler_.take_unbound()) continue;
    // Rule BIND: weights were written by somebody unknown, who is done with this rank.
    known_weights_.forget();
    adopt_is_due_ = adopt_is_due_ || was_open;
  }
}

void EngineCore::submit_steps() {
  const auto in_flight_max = static_cast<std::size_t>(executor_.steps_in_flight_max());
  while (scheduler_.steps_in_flight() < in_flight_max) {
    bind_epoch();
    std::optional<SchedulerOutput> output = scheduler_.schedule(weight_version());
    if (!output) return;
    executor_.submit(std::move(*output));
  }
}

bool EngineCore::has_work() const {
  return scheduler_.has_schedulable() || scheduler_.steps_in_flight() > 0 ||
         scheduler_.has_pending_push_work() || scheduler_.has_outputs() || !pauses_.empty() ||
         sleep_.has_value();
}

std::optional<Time> EngineCore::next_deadline() const {
  std::optional<Time> next;
  for (const PendingPause& pause : pauses_)
    next = std::min(next.value_or(pause.wait_until), pause.wait_until);
  if (sleep_) next = std::min(next.value_or(sleep_->deadline), sleep_->deadline);
  return next;
}

// --- pause ---

void EngineCore::pause_generation(PauseMode mode, bool clear_cache, Time deadline,
                                  std::function<void(PauseAnswer)> done) {
  log(LogLevel::kDebug, "engine_core",
      "pause_generation(" + std::string(to_string(mode)) +
          ", clear_cache=" + (clear_cache ? "true" : "false") + ")");
  const Time now = clock_.now();
  const Duration for_reset = clear_cache ? std::max(Duration{0}, deadline - now) / 5 : Duration{0};
  std::list<PendingPause> pause;
  pause.push_back({.mode = mode,
                   .clear_cache = clear_cache,
                   .started = now,
                   .wait_until = deadline - for_reset,
                   .deadline = deadline,
                   .done = std::move(done)});
  if (mode == PauseMode::kAbort) abort_requests({});
  // Nothing throws from here on: an engine that is paused has somebody who is told.
  pauses_.splice(pauses_.end(), pause);
  scheduler_.set_pause_state(mode == PauseMode::kKeep ? PauseState::kPausedAll
                                                      : PauseState::kPausedNew);
  keeps_requests_ = mode == PauseMode::kKeep && !clear_cache;
}

// Whoever waits for a pause has had all outputs from before it.
bool EngineCore::is_complete(const PendingPause& pause) const {
  if (scheduler_.forward_steps_in_flight() > 0 || scheduler_.has_outputs()) return false;
  return pause.mode == PauseMode::kKeep || !scheduler_.has_schedulable();
}

// Answers what is complete or late. A callback may pause or resume again.
void EngineCore::settle() {
  const Time now = clock_.now();
  for (auto pause = pauses_.begin(); pause != pauses_.end();) {
    const bool complete = is_complete(*pause);
    if (!complete && now < pause->wait_until) {
      ++pause;
      continue;
    }
    const PendingPause due = std::move(*pause);
    pauses_.erase(pause);
    answer(due, complete);
    pause = pauses_.begin();
  }
  settle_sleep();
}

void EngineCore::answer(const PendingPause& pause, bool complete) {
  PauseAnswer answer;
  answer.complete = complete;
  if (!complete) {
    answer.running_requests = scheduler_.unfinished(pause.mode != PauseMode::kKeep);
    answer.steps_in_flight = scheduler_.forward_steps_in_flight();
  }
  // Late or not: from here on nobody can read what was cached before.
  if (pause.clear_cache) answer.reset = reset_caches(pause.deadline);
  answer.duration = clock_.now() - pause.started;
  if (!complete) {
    log(LogLevel::kWarning, "engine_core",
        "pause " + std::string(to_string(pause.mode)) +
            " is not complete: " + std::to_string(answer.running_requests.size()) +
            " requests and " + std::to_string(answer.steps_in_flight) + " steps remain");
  }
  if (pause.done) pause.done(std::move(answer));
}

Status EngineCore::resume_generation() {
  if (!is_resident()) {
    return fail(Code::kBadRequest, "resume_generation: the engine sleeps; call wake_up first");
  }
  scheduler_.set_pause_state(PauseState::kUnpaused);
  keeps_requests_ = false;
  const std::list<PendingPause> overtaken = std::exchange(pauses_, {});
  for (const PendingPause& pause : overtaken) answer(pause, false);
  return {};
}

// --- resets ---

CacheResetAnswer EngineCore::reset_prefix_cache(bool reset_running_requests, bool reset_connector,
                                                Time deadline, bool keep_verified) {
  return scheduler_.reset_prefix_cache(reset_running_requests, reset_connector, deadline,
                                       keep_verified);
}

CacheResetAnswer EngineCore::reset_caches(Time deadline) {
  log(LogLevel::kDebug, "engine_core",
      "reset_caches(reset_running_requests=true, reset_connector=true)");
  CacheResetAnswer answer = reset_prefix_cache(true, true, deadline);
  if (!answer.success) {
    log(LogLevel::kError, "engine_core", "failed to reset the caches: " + answer.error);
  }
  return answer;
}

}  // namespace newmoon
