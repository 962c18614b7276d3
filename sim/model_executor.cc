#include "sim/model_executor.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "hash/sha256.h"
#include "sim/task_queue.h"

namespace newmoon::sim {

DigestIdentity digest_of(std::span<const toy::Weights> by_rank) {
  Bytes bytes;
  for (const toy::Weights weights : by_rank) append_be<std::uint64_t>(bytes, weights);
  return {sha256(bytes)};
}

SimModelExecutor::SimModelExecutor(Kernel& kernel, Options options, std::vector<SimRank*> ranks,
                                   Verdict& verdict)
    : kernel_(kernel),
      options_(options),
      ranks_(std::move(ranks)),
      verdict_(verdict),
      dead_(ranks_.size()) {}

void SimModelExecutor::fail_next_update(std::vector<std::size_t> ranks, bool torn) {
  failing_ = std::move(ranks);
  torn_ = torn;
}

void SimModelExecutor::rank_died(std::size_t rank) {
  dead_[rank] = true;
  for (Step& step : steps_) end_if_complete(step);
  kernel_.wake_all(changed_);
}

void SimModelExecutor::submit(SchedulerOutput output) {
  if (on_submit) on_submit(output);
  if (steps_.size() >= static_cast<std::size_t>(options_.steps_in_flight_max)) {
    verdict_.violation("step", "more steps in flight than the executor takes");
  }
  Step step{.step_id = output.step_id, .wants_token = {}, .outputs = {}};
  for (const SequenceStep& sequence : output.input.sequences) {
    step.wants_token.push_back(sequence.sampling != nullptr);
  }
  step.outputs.resize(ranks_.size());
  steps_.push_back(std::move(step));
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (dead_[r]) continue;
    ranks_[r]->submit(output, [this, id = output.step_id, r](RankOutput ended) {
      rank_ended(id, r, std::move(ended));
    });
  }
  end_if_complete(steps_.back());
}

void SimModelExecutor::rank_ended(std::uint64_t step_id, std::size_t rank, RankOutput output) {
  if (dead_[rank]) return;
  for (Step& step : steps_) {
    if (step.step_id != step_id) continue;
    step.outputs[rank] = std::move(output);
    return end_if_complete(step);
  }
}

void SimModelExecutor::end_if_complete(Step& step) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (!step.outputs[r] && !dead_[r]) return;
  }
  step.ended = true;
  kernel_.wake_all(changed_);
}

ModelRunnerOutput SimModelExecutor::combine(Step& step) const {
  ModelRunnerOutput output{.step_id = step.step_id, .output = StepOutput{}, .workers = {}};
  for (auto& rank : step.outputs) {
    if (rank && rank->report) output.workers.push_back(std::move(*rank->report));
  }
  if (const Status alive = check_alive(); !alive) {
    output.output = std::unexpected(alive.error());
    return output;
  }
  for (std::size_t i = 0; i < step.wants_token.size(); ++i) {
    std::vector<std::uint64_t> logits;
    for (const auto& rank : step.outputs) logits.push_back(rank->logits[i]);
    output.output->sampled.push_back(
        step.wants_token[i]
            ? std::optional(SampledToken{.token = toy::token_of(logits, options_.vocab_size),
                                         .logprob = {},
                                         .top_logprobs = {}})
            : std::nullopt);
  }
  return output;
}

std::optional<ModelRunnerOutput> SimModelExecutor::poll() {
  if (steps_.empty() || !steps_.front().ended) return std::nullopt;
  Step step = std::move(steps_.front());
  steps_.pop_front();
  return combine(step);
}

void SimModelExecutor::wait(Time deadline) {
  while (kernel_.now() < deadline) {
    if (!steps_.empty() && steps_.front().ended) return;
    if (!kernel_.wait(changed_, deadline)) return;
  }
}

Status SimModelExecutor::check_alive() const {
  const auto gone = std::ranges::find(dead_, true);
  if (gone == dead_.end()) return {};
  return fail(Code::kUnavailable,
              "rank " + std::to_string(gone - dead_.begin()) + " is dead: restart the engine");
}

Status SimModelExecutor::on_every_rank(const std::function<void(std::size_t)>& action) {
  std::vector<std::size_t> order(ranks_.size());
  for (std::size_t r = 0; r < order.size(); ++r) order[r] = r;
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[kernel_.random().below(i)]);
  }
  // Outlives this call if a rank dies and the call does not wait for it.
  const auto ended = std::make_shared<std::vector<bool>>(ranks_.size());
  for (const std::size_t r : order) {
    kernel_.sleep_for(draw_duration(kernel_.random(), Duration{0}, options_.write_gap_max));
    if (dead_[r]) continue;
    ranks_[r]->call(
        [this, r, ended, action] {
          action(r);
          (*ended)[r] = true;
          kernel_.wake_all(changed_);
        },
        ranks_[r]->options().writes_overtake);
  }
  const auto waiting = [&] {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (!(*ended)[r] && !dead_[r]) return true;
    }
    return false;
  };
  while (waiting()) kernel_.wait(changed_, kNever);
  return check_alive();
}

Status SimModelExecutor::write_on_every_rank(const std::function<void(std::size_t)>& action) {
  moving_ = true;
  const Status status = on_every_rank(action);
  moving_ = false;
  return status;
}

Result<WeightsReport> SimModelExecutor::update_weights(const WeightUpdate& update, bool digest,
                                                       Epoch sealed_epoch) {
  const std::vector<std::size_t> failing = std::exchange(failing_, {});
  const bool torn = std::exchange(torn_, false);
  const Status moved =
      write_on_every_rank([this, update, failing, torn, sealed_epoch](std::size_t r) {
        const bool changes = torn || std::ranges::find(failing, r) == failing.end();
        ranks_[r]->write_weights(sealed_epoch, [&](RankWeights& weights) {
          if (changes) weights.apply(update);
        });
      });
  if (!moved) return std::unexpected(moved.error());
  if (!failing.empty()) {
    verdict_.saw(Overlap::kPartialUpdate);
    return fail(Code::kUnavailable,
                "rank " + std::to_string(failing.front()) + " could not take the weights");
  }
  return weights_report(digest);
}

Result<WeightsReport> SimModelExecutor::weights_report(bool digest) {
  if (const Status alive = check_alive(); !alive) return std::unexpected(alive.error());
  WeightsReport report;
  std::vector<toy::Weights> by_rank;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    report.weight_writes.push_back(ranks_[r]->weight_writes());
    by_rank.push_back(ranks_[r]->weights().of_rank(r));
  }
  if (digest) report.digest = digest_of(by_rank);
  return report;
}

std::size_t SimModelExecutor::forward_steps_in_flight() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(steps_, [](const Step& step) { return !step.wants_token.empty(); }));
}

Status SimModelExecutor::sleep(int level) {
  if (forward_steps_in_flight() > 0) {
    verdict_.violation("W6", "the ranks are put to sleep while a step is in flight");
  }
  return on_every_rank([this, level](std::size_t r) { ranks_[r]->sleep(level); });
}

Result<WeightsReport> SimModelExecutor::wake_up(bool digest, Epoch sealed_epoch) {
  const Status awake = write_on_every_rank(
      [this, sealed_epoch](std::size_t r) { ranks_[r]->wake_up(sealed_epoch); });
  if (!awake) return std::unexpected(awake.error());
  return weights_report(digest);
}

}  // namespace newmoon::sim
