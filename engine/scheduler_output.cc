// What comes back from a step: reports of the ranks, sampled tokens, ends.
#include <algorithm>
#include <cassert>
#include <utility>

#include "base/log.h"
#include "engine/scheduler.h"

namespace newmoon {

void Scheduler::update_from_output(const ModelRunnerOutput& output) {
  const auto entry = steps_.extract(output.step_id);
  if (entry.empty()) {
    log(LogLevel::kError, "scheduler",
        "output of step " + std::to_string(output.step_id) + ", which is not in flight: dropped");
    return;
  }
  // First, for they may say that this step ran on other weights than it was meant for.
  take_reports(output.workers);
  take_sequences(entry.mapped(), output);
  kv_.step_ended(output.step_id);
}

void Scheduler::take_reports(std::span<const WorkerReport> reports) {
  if (connector_ == nullptr) return;
  ConnectorOutput output;
  connector_->scheduler().update_connector_output(reports, output);
  for (const FinishedLoad& load : output.loads) take_load(load);
  if (output.must_fence) {
    log(LogLevel::kWarning, "scheduler", "a rank's weights were written unannounced: sealed");
    seal(false);
    unbound_ = true;
  }
}

void Scheduler::take_load(const FinishedLoad& load) {
  const auto found = requests_.find(load.request_id);
  // Rule ONE-LOAD: an older load of this id has no say.
  if (found != requests_.end() && found->second->load_id == load.load_id) {
    EngineRequest& request = *found->second;
    request.load_id = 0;
    request.status = RequestStatus::kWaiting;
    std::size_t keep = request.blocks.size();
    for (const BlockId failed : load.failed_blocks) {
      const auto at = std::ranges::find(request.blocks, failed) - request.blocks.begin();
      keep = std::min(keep, static_cast<std::size_t>(at));
    }
    if (load.cancelled || load.epoch != fence_.epoch()) keep = 0;
    const auto local = request.num_computed_tokens;
    kv_.truncate(request, keep);
    const auto loaded = static_cast<std::uint32_t>(keep) * block_size_;
    request.num_external_tokens = loaded > local ? loaded - local : 0;
    if (loaded > local) {
      kv_.note_births(request, local, loaded, load.epoch);
      request.num_computed_tokens = loaded;
      kv_.publish(request);
    }
  }
  kv_.load_ended(load.load_id);
}

void Scheduler::take_sequences(const StepInFlight& step, const ModelRunnerOutput& output) {
  const bool complete = output.output && output.output->sampled.size() == step.sequences.size();
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const SequenceInFlight& sequence = step.sequences[i];
    // Preempted or finished since: its blocks are no longer the step's, nor is what
    // the step says (vLLM's drop_stale_output).
    if (sequence.request->step_id != output.step_id) continue;
    sequence.request->step_id = 0;
    if (complete) {
      take_sequence(sequence, step, output.output->sampled[i]);
    } else {
      const Error error = output.output ? Error{Code::kInternal, "the step's output is incomplete"}
                                        : output.output.error();
      finish(sequence.request, RequestStatus::kFinishedError, to_string(error));
    }
  }
}

void Scheduler::take_sequence(const SequenceInFlight& sequence, const StepInFlight& step,
                              const std::optional<SampledToken>& sampled) {
  EngineRequest& request = *sequence.request;
  request.num_computed_tokens += sequence.num_tokens;
  request.counters.computed_tokens += sequence.num_tokens;
  kv_.publish(request);
  if (request.num_computed_tokens < request.num_tokens()) return;
  if (!sampled) {
    finish(sequence.request, RequestStatus::kFinishedError, "internal: no token was sampled");
    return;
  }
  take_token(sequence.request, *sampled, step.weight_version);
}

void Scheduler::take_token(const RequestPtr& request, const SampledToken& sampled,
                           const std::string& weight_version) {
  request->append(sampled.token, weight_version);
  RequestOutput& output = output_of(*request);
  output.tokens.push_back(sampled);
  output.weight_version = weight_version;
  if (const std::optional<RequestStatus> end = end_of(*request)) {
    finish(request, *end, "");
    return;
  }
  const Status hashed =
      hasher_.extend(request->tokens, request->input.extra_keys, request->block_hashes);
  // It was hashed with the same keys before.
  if (!hashed) finish(request, RequestStatus::kFinishedError, to_string(hashed.error()));
}

std::optional<RequestStatus> Scheduler::end_of(const EngineRequest& request) const {
  const Token last = request.tokens.back();
  const std::vector<Token>& stops = request.input.stop_token_ids;
  const bool ends = !request.input.ignore_eos && last == info_.end_of_sequence;
  if (ends || std::ranges::find(stops, last) != stops.end()) {
    return RequestStatus::kFinishedStopped;
  }
  if (request.num_output_tokens() >= request.input.max_tokens ||
      request.num_tokens() >= static_cast<std::uint32_t>(info_.context_tokens_max)) {
    return RequestStatus::kFinishedLengthCapped;
  }
  return std::nullopt;
}

RequestOutput& Scheduler::output_of(const EngineRequest& request) {
  // An id may be used again once finished, so only the newest entry counts.
  const auto newest =
      std::ranges::find(outputs_.rbegin(), outputs_.rend(), request.input.id, &RequestOutput::id);
  if (newest != outputs_.rend() && !newest->finished) return *newest;
  RequestOutput& output = outputs_.emplace_back();
  output.id = request.input.id;
  return output;
}

void Scheduler::finish(const RequestPtr& request, RequestStatus status, const std::string& error) {
  assert(is_finished(status));
  RequestOutput& output = output_of(*request);
  output.error = error;
  output.weight_versions = request->weight_versions;
  if (!output.weight_versions.empty()) {
    output.weight_version = output.weight_versions.back().version;
  }
  output.counters = request->counters;
  drop_blocks(*request);
  // Nothing throws from here on: no request goes without an end that somebody is told.
  output.finished = true;
  output.status = status;
  leave_slot(*request);
  std::erase(running_, request);
  std::erase(waiting_, request);
  requests_.erase(request->input.id);
  request->status = status;
}

std::vector<RequestOutput> Scheduler::take_outputs() { return std::exchange(outputs_, {}); }

}  // namespace newmoon
