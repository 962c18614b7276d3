// The queues: adding requests and building steps.
#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/contain.h"

namespace newmoon {
namespace {

// Requests that wait for a lookup, a load or room for one; beyond so many times the
// slots, those behind are not asked about.
constexpr std::size_t kHeldUpPerSlot = 4;

Status bad(const RequestInput& input, std::string why) {
  return fail(Code::kBadRequest, "request " + input.id + ": " + std::move(why));
}

}  // namespace

Scheduler::Scheduler(Options options, Parts parts)
    : options_(options),
      info_(std::move(parts.info)),
      hasher_(parts.hasher),
      fence_(parts.fence),
      pool_(parts.pool),
      connector_(parts.connector),
      clock_(parts.clock),
      purge_(std::move(parts.purge)),
      block_size_(static_cast<std::uint32_t>(info_.block_size)),
      kv_(pool_, info_.block_size, info_.prefill_tokens_min),
      slot_taken_(static_cast<std::size_t>(info_.sequences_max), false) {
  assert(hasher_.block_size() == info_.block_size);
}

// --- requests ---

Status Scheduler::check(const RequestInput& input) const {
  if (input.id.empty()) return fail(Code::kBadRequest, "a request needs an id");
  if (requests_.contains(input.id)) return bad(input, "the id is in use");
  if (input.prompt.empty()) return bad(input, "the prompt is empty");
  if (input.max_tokens == 0) return bad(input, "max_tokens is 0; ask for at least 1");
  const auto context_max = static_cast<std::size_t>(info_.context_tokens_max);
  if (input.prompt.size() >= context_max) {
    return bad(input, "the prompt has " + std::to_string(input.prompt.size()) +
                          " tokens, the context holds " + std::to_string(context_max) +
                          " and one must be left for the answer");
  }
  const std::size_t tokens = std::min(context_max, input.prompt.size() + input.max_tokens);
  if ((tokens + block_size_ - 1) / block_size_ > pool_.usable_count()) {
    return bad(input, std::to_string(tokens) + " tokens need more KV blocks than the engine has (" +
                          std::to_string(pool_.usable_count()) + " of " +
                          std::to_string(block_size_) + " tokens)");
  }
  for (const Token token : input.prompt) {
    if (token < 0 || token >= info_.vocab_size) {
      return bad(input, "token " + std::to_string(token) + " is not in the vocabulary of " +
                            std::to_string(info_.vocab_size));
    }
  }
  return {};
}

Status Scheduler::add_request(RequestInput input) {
  if (Status status = check(input); !status) return status;
  auto request = std::make_shared<EngineRequest>(std::move(input));
  if (Status status =
          hasher_.extend(request->tokens, request->input.extra_keys, request->block_hashes);
      !status) {
    return status;
  }
  const auto entry = requests_.emplace(request->input.id, request).first;
  const Status queued = contain([&] { waiting_.push_back(std::move(request)); });
  if (!queued) requests_.erase(entry);  // its id would be in use for ever
  return queued;
}

std::size_t Scheduler::finish_requests(std::span<const RequestId> ids, RequestStatus status) {
  std::vector<RequestPtr> named;
  if (ids.empty()) {
    named.assign(running_.begin(), running_.end());
    named.insert(named.end(), waiting_.begin(), waiting_.end());
  }
  for (const RequestId& id : ids) {
    const auto found = requests_.find(id);
    if (found != requests_.end()) named.push_back(found->second);
  }
  for (const RequestPtr& request : named) finish(request, status, "");
  return named.size();
}

bool Scheduler::may_run(const EngineRequest& request) const {
  switch (pause_state_) {
    case PauseState::kUnpaused:
      return true;
    case PauseState::kPausedNew:
      return request.started || request.holds_blocks();
    case PauseState::kPausedAll:
      return false;
  }
  return false;
}

std::vector<RequestId> Scheduler::unfinished(bool schedulable) const {
  std::vector<RequestId> ids;
  const auto add = [&](const RequestPtr& request) {
    if (!schedulable || may_run(*request)) ids.push_back(request->input.id);
  };
  std::ranges::for_each(running_, add);
  std::ranges::for_each(waiting_, add);
  return ids;
}

bool Scheduler::has_schedulable() const {
  const auto may = [&](const RequestPtr& request) { return may_run(*request); };
  return std::ranges::any_of(running_, may) || std::ranges::any_of(waiting_, may);
}

std::size_t Scheduler::forward_steps_in_flight() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      steps_, [](const auto& entry) { return !entry.second.sequences.empty(); }));
}

bool Scheduler::has_pending_push_work() const {
  return connector_ != nullptr && connector_->scheduler().has_pending_push_work();
}

// --- a step ---

std::optional<SchedulerOutput> Scheduler::schedule(const std::string& weight_version) {
  StepBuilder builder;
  builder.output.step_id = last_step_id_ + 1;
  builder.output.epoch = fence_.epoch();
  builder.step.weight_version = weight_version;
  if (pause_state_ != PauseState::kPausedAll) {
    builder.budget = static_cast<std::uint32_t>(info_.step_tokens_max);
    schedule_running(builder);
    if (!builder.preempted) schedule_waiting(builder);
  }
  build_connector_meta(builder);

  const ConnectorMetadata& metadata = builder.output.connector;
  const bool works = !builder.output.input.sequences.empty() || !metadata.loads.empty();
  if (works) fence_.note_scheduled();
  // Without anything to do, a step may still be needed to hear what the ranks report.
  const bool listens = has_pending_push_work() && steps_.empty();
  if (!works && metadata.saves.empty() && !listens) return std::nullopt;
  last_step_id_ = builder.output.step_id;
  steps_.emplace(last_step_id_, std::move(builder.step));
  return std::move(builder.output);
}

// The longest run of its tokens that fits the budget and leaves no remainder too
// short to be computed by itself; 0: none.
std::uint32_t Scheduler::chunk(const EngineRequest& request, std::uint32_t budget) const {
  const std::uint32_t remaining = request.num_tokens() - request.num_computed_tokens;
  if (remaining <= budget) return remaining;
  const auto tokens_min = static_cast<std::uint32_t>(std::max(1, info_.prefill_tokens_min));
  if (remaining < 2 * tokens_min) return 0;
  const std::uint32_t tokens = std::min(budget, remaining - tokens_min);
  return tokens < tokens_min ? 0 : tokens;
}

// A slot's stream is made anew from whole blocks; what is left over is computed.
void Scheduler::prepare_restart(EngineRequest& request) {
  if (!request.restart) return;
  const std::uint32_t context = kv_.usable_hit(request, request.num_computed_tokens);
  kv_.truncate(request, context / block_size_);
}

void Scheduler::schedule_running(StepBuilder& builder) {
  for (std::size_t i = 0; i < running_.size() && builder.budget > 0;) {
    const RequestPtr request = running_[i];
    if (request->step_in_flight()) {
      ++i;
      continue;
    }
    prepare_restart(*request);
    const std::uint32_t tokens = chunk(*request, builder.budget);
    if (tokens > 0 && make_room(request, request->num_computed_tokens + tokens, builder)) {
      add_sequence(request, tokens, builder);
    }
    // It may have been preempted itself.
    if (i < running_.size() && running_[i] == request) ++i;
  }
}

// For a running request: lets waiting requests' KV go first, then the newest running
// request, in the end itself. The oldest waits instead for blocks that steps, loads or
// saves still hold, since nobody else can run with what it has.
bool Scheduler::make_room(const RequestPtr& request, std::uint32_t num_tokens,
                          StepBuilder& builder) {
  while (!kv_.grow(*request, num_tokens)) {
    if (drop_a_waiting_holder(*request)) continue;
    const auto newest = std::ranges::find_if(
        running_.rbegin(), running_.rend(),
        [&](const RequestPtr& other) { return other == request || !other->step_in_flight(); });
    const RequestPtr victim = *newest;
    if (victim == request && running_.front() == request) return false;
    builder.preempted = true;
    preempt(victim);
    if (victim == request) return false;
  }
  return true;
}

bool Scheduler::drop_a_waiting_holder(const EngineRequest& besides) {
  const auto holder =
      std::ranges::find_if(waiting_.rbegin(), waiting_.rend(), [&](const RequestPtr& request) {
        return request.get() != &besides && request->holds_blocks() && request->load_id == 0;
      });
  if (holder == waiting_.rend()) return false;
  drop_blocks(**holder);
  return true;
}

void Scheduler::schedule_waiting(StepBuilder& builder) {
  const std::size_t held_up_max = slot_taken_.size() * kHeldUpPerSlot;
  std::size_t held_up = 0;
  for (std::size_t i = 0; i < waiting_.size() && builder.budget > 0;) {
    if (running_.size() == slot_taken_.size() || held_up == held_up_max) return;
    const RequestPtr request = waiting_[i];
    const Admission admission = may_run(*request) ? admit(request, builder) : Admission::kLater;
    if (admission == Admission::kShortage) return;
    if (admission == Admission::kAdmitted) continue;  // gone from the queue
    ++i;
    if (may_run(*request)) ++held_up;
  }
}

Scheduler::Admission Scheduler::admit(const RequestPtr& request, StepBuilder& builder) {
  if (request->load_id != 0) return Admission::kLater;
  if (!request->holds_blocks()) {
    const Admission found = find_prefix(*request);
    if (found != Admission::kAdmitted) return found;
  }
  prepare_restart(*request);
  const std::uint32_t tokens = chunk(*request, builder.budget);
  if (tokens == 0 || !make_room_waiting(*request, request->num_computed_tokens + tokens)) {
    // What was loaded is worth keeping; what the local cache has, it will have again.
    if (request->num_external_tokens == 0) kv_.truncate(*request, 0);
    return Admission::kShortage;
  }
  take_slot(request);
  add_sequence(request, tokens, builder);
  return Admission::kAdmitted;
}

// For a waiting request: who runs will free some blocks. If nobody does, the KV of
// those behind must give way.
bool Scheduler::make_room_waiting(EngineRequest& request, std::uint32_t num_tokens) {
  while (!kv_.grow(request, num_tokens)) {
    if (!running_.empty() || forward_steps_in_flight() > 0) return false;
    if (!drop_a_waiting_holder(request)) return false;
  }
  return true;
}

// Local cache, then external tier. kAdmitted: what is there is in its table.
Scheduler::Admission Scheduler::find_prefix(EngineRequest& request) {
  const std::uint32_t local = kv_.take_cached_prefix(request);
  request.num_external_tokens = 0;
  if (connector_ == nullptr) return Admission::kAdmitted;
  StoreScheduler& external = connector_->scheduler();
  const std::optional<ExternalMatch> match = external.get_num_new_matched_tokens(
      request.input.id, request.num_tokens(), request.block_hashes, local);
  if (!match) {
    kv_.truncate(request, 0);
    return Admission::kLater;
  }
  const std::uint32_t hit = kv_.usable_hit(request, local + match->num_tokens);
  if (hit > local) {
    const Admission loads = start_load(request, hit);
    if (loads != Admission::kAdmitted) return loads;
  } else {
    external.update_state_after_alloc(request.input.id, request.blocks, request.block_hashes, local,
                                      0);
  }
  return Admission::kAdmitted;
}

// Brings its context to num_tokens. kLater: the load is under way, or has to wait.
Scheduler::Admission Scheduler::start_load(EngineRequest& request, std::uint32_t num_tokens) {
  const auto loads =
      static_cast<std::size_t>(std::ranges::count_if(waiting_, [&](const RequestPtr& other) {
        return other.get() != &request && other->holds_blocks();
      }));
  const bool could_run_once_loaded = loads < slot_taken_.size();
  if (!could_run_once_loaded || !make_room_waiting(request, num_tokens)) {
    kv_.truncate(request, 0);
    return could_run_once_loaded ? Admission::kShortage : Admission::kLater;
  }
  const std::uint32_t local = request.num_computed_tokens;
  const std::optional<std::uint64_t> load_id = connector_->scheduler().update_state_after_alloc(
      request.input.id, request.blocks, request.block_hashes, local, num_tokens - local);
  if (!load_id) {
    kv_.truncate(request, local / block_size_);
    return Admission::kAdmitted;
  }
  request.load_id = *load_id;
  request.num_external_tokens = num_tokens - local;
  request.started = true;
  request.status = RequestStatus::kWaitingForRemoteKvs;
  return Admission::kLater;
}

void Scheduler::take_slot(const RequestPtr& request) {
  const auto free = std::ranges::find(slot_taken_, false);
  assert(free != slot_taken_.end());
  *free = true;
  request->slot = static_cast<int>(free - slot_taken_.begin());
  request->restart = true;
  request->started = true;
  request->status = RequestStatus::kRunning;
  request->counters.external_hit_tokens += request->num_external_tokens;
  request->counters.local_hit_tokens += request->num_computed_tokens - request->num_external_tokens;
  waiting_.erase(std::ranges::find(waiting_, request));
  running_.push_back(request);
}

void Scheduler::add_sequence(const RequestPtr& request, std::uint32_t num_tokens,
                             StepBuilder& builder) {
  const std::uint32_t first = request->num_computed_tokens;
  const std::uint32_t last = first + num_tokens;
  SequenceStep sequence{.slot = *request->slot,
                        .restart = std::exchange(request->restart, false),
                        .num_computed_tokens = first,
                        .tokens = {request->tokens.begin() + first, request->tokens.begin() + last},
                        .blocks = request->blocks,
                        .sampling = nullptr,
                        .sample_index = request->num_output_tokens()};
  if (last == request->num_tokens()) sequence.sampling = &request->input.sampling;
  kv_.note_births(*request, first, last, fence_.epoch());
  request->step_id = builder.output.step_id;
  builder.budget -= num_tokens;
  builder.output.input.sequences.push_back(std::move(sequence));
  builder.step.sequences.push_back({.request = request, .num_tokens = num_tokens});
}

void Scheduler::housekeep() {
  if (connector_ != nullptr) connector_->scheduler().housekeep();
}

void Scheduler::build_connector_meta(StepBuilder& builder) {
  builder.output.connector.epoch = fence_.epoch();
  if (connector_ == nullptr) return;
  std::vector<RequestProgress> progress;
  for (const SequenceInFlight& sequence : builder.step.sequences) {
    const EngineRequest& request = *sequence.request;
    progress.push_back({.request_id = request.input.id,
                        .num_computed_tokens = request.num_computed_tokens + sequence.num_tokens,
                        .block_hashes = request.block_hashes,
                        .blocks = request.blocks});
  }
  builder.output.connector = connector_->scheduler().build_connector_meta(progress);
}

}  // namespace newmoon
