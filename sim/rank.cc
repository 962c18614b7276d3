#include "sim/rank.h"

#include <string>
#include <utility>

#include "sim/task_queue.h"

namespace newmoon::sim {
namespace {

std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 0x6e6d;
  for (const char c : text) hash = toy::mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

struct Apply {
  RankWeights& weights;
  void operator()(const LoadGguf& load) const { weights = {.gguf = fingerprint(load.path)}; }
  void operator()(const SetTensors& set) const {
    for (const auto& [name, bytes] : set.tensors) {
      weights.tensors = toy::mix(weights.tensors ^ fingerprint(name) ^ fingerprint(as_text(bytes)));
    }
  }
  void operator()(const SetLora& set) const {
    weights.lora = set.path.empty()
                       ? 0
                       : toy::mix(fingerprint(set.path) ^ std::bit_cast<std::uint32_t>(set.scale));
  }
};

}  // namespace

void RankWeights::apply(const WeightUpdate& update) { std::visit(Apply{*this}, update); }

toy::Weights RankWeights::of_rank(std::size_t rank) const {
  return toy::mix(toy::mix(gguf + rank) ^ toy::mix(tensors + 1) ^ toy::mix(lora + 2));
}

SimRank::SimRank(Kernel& kernel, RankOptions options, const Process& process, SimMemory& memory,
                 Verdict& verdict)
    : kernel_(kernel),
      options_(options),
      process_(process),
      memory_(memory),
      verdict_(verdict),
      slots_(static_cast<std::size_t>(options.slots)) {}

void SimRank::submit(const SchedulerOutput& step, std::function<void(RankOutput)> done) {
  enqueue([this, step, done = std::move(done)] { done(run_step(step)); }, false);
}

void SimRank::call(std::function<void()> action, bool ahead) { enqueue(std::move(action), ahead); }

void SimRank::enqueue(std::function<void()> work, bool ahead) {
  if (ahead) {
    work_.push_front(std::move(work));
  } else {
    work_.push_back(std::move(work));
  }
  if (running_) return;
  running_ = true;
  kernel_.spawn([this] { run(); });
}

void SimRank::run() {
  while (!work_.empty()) {
    kernel_.sleep_for(draw_duration(kernel_.random(), Duration{0}, std::chrono::microseconds(50)));
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    work();
  }
  running_ = false;
}

Duration SimRank::duration_of(const SchedulerOutput& step) {
  Random& random = kernel_.random();
  // A step without a forward pass only carries the connector's work.
  if (step.input.sequences.empty()) {
    return draw_duration(random, Duration{0}, std::chrono::microseconds(700));
  }
  if (sleep_level_ > 0) verdict_.violation("step", "a step is run while the model sleeps");
  const bool stall = random.chance(options_.stall_percent);
  if (stall) verdict_.note_fault();
  return draw_duration(random, Duration{0}, stall ? options_.stall_max : options_.step_max);
}

RankOutput SimRank::run_step(const SchedulerOutput& step) {
  RankOutput output;
  if (!process_.alive) return output;
  if (on_step) on_step(step);
  kernel_.trace("step", {options_.rank, step.step_id, step.epoch, step.input.sequences.size()});
  start_jobs(step.connector);
  kernel_.sleep_for(duration_of(step));
  for (const SequenceStep& sequence : step.input.sequences) {
    output.logits.push_back(run_sequence(sequence));
  }
  output.report = finish_jobs(step.connector);
  ++steps_ended_;
  return output;
}

void SimRank::start_jobs(const ConnectorMetadata& metadata) {
  for (const LoadJob& job : metadata.loads) memory_.job_started(job);
  worker_->start_load_kv(metadata);
}

WorkerReport SimRank::finish_jobs(const ConnectorMetadata& metadata) {
  for (const SaveJob& job : metadata.saves) memory_.job_started(job);
  worker_->wait_for_save(metadata);
  WorkerReport report = worker_->get_finished();
  for (const LoadReport& load : report.loads) memory_.reported(load);
  for (const SaveReport& save : report.saves) memory_.reported(save);
  if (report.unbound_epoch) verdict_.saw(Overlap::kUnboundEpoch);
  return report;
}

bool SimRank::valid(const SequenceStep& sequence) const {
  const auto size = static_cast<std::size_t>(options_.block_size);
  const std::size_t end = sequence.num_computed_tokens + sequence.tokens.size();
  if (sequence.slot < 0 || sequence.slot >= options_.slots || sequence.tokens.empty()) return false;
  if (sequence.restart && sequence.num_computed_tokens % size != 0) return false;
  if (sequence.blocks.size() * size < end) return false;
  for (std::size_t i = 0; i * size < end; ++i) {
    if (sequence.blocks[i] <= kNullBlock) return false;
  }
  const auto& stream = slots_[static_cast<std::size_t>(sequence.slot)];
  return sequence.restart || options_.paged || stream.size() == sequence.num_computed_tokens;
}

std::uint64_t SimRank::run_sequence(const SequenceStep& sequence) {
  if (!valid(sequence)) {
    verdict_.violation("step", "rank " + std::to_string(options_.rank) +
                                   " is given a sequence that breaks model/model_runner.h");
    return 0;
  }
  const toy::Weights weights = weights_.of_rank(options_.rank);
  toy::History history = attend_to(sequence);
  std::size_t position = sequence.num_computed_tokens;
  for (const Token token : sequence.tokens) {
    const toy::KvEntry entry = toy::kv_of(weights, history, token);
    history = toy::attend(history, entry);
    append(sequence, position++, entry);
  }
  if (!options_.paged) write_back(sequence);
  return toy::logits_of(weights, history);
}

// Reads back all of the sequence's context, from wherever it really lies.
toy::History SimRank::attend_to(const SequenceStep& sequence) {
  auto& stream = slots_[static_cast<std::size_t>(sequence.slot)];
  const bool from_blocks = options_.paged || sequence.restart;
  if (from_blocks) stream.clear();
  toy::History history = toy::kEmptyHistory;
  for (std::size_t i = 0; i < sequence.num_computed_tokens; ++i) {
    if (from_blocks) {
      const auto size = static_cast<std::size_t>(options_.block_size);
      const BlockId block = sequence.blocks[i / size];
      if (i % size == 0) memory_.check_read(block);
      stream.push_back(memory_.entry(block, static_cast<int>(i % size)));
    }
    history = toy::attend(history, stream[i]);
  }
  return history;
}

void SimRank::append(const SequenceStep& sequence, std::size_t position, toy::KvEntry entry) {
  slots_[static_cast<std::size_t>(sequence.slot)].push_back(entry);
  if (!options_.paged) return;
  const auto size = static_cast<std::size_t>(options_.block_size);
  const BlockId block = sequence.blocks[position / size];
  memory_.check_write(block);
  memory_.set_entry(block, static_cast<int>(position % size), entry);
}

// The blocks that this step filled.
void SimRank::write_back(const SequenceStep& sequence) {
  const auto size = static_cast<std::size_t>(options_.block_size);
  const auto& stream = slots_[static_cast<std::size_t>(sequence.slot)];
  for (std::size_t b = sequence.num_computed_tokens / size; b < stream.size() / size; ++b) {
    memory_.check_write(sequence.blocks[b]);
    for (std::size_t i = 0; i < size; ++i) {
      memory_.set_entry(sequence.blocks[b], static_cast<int>(i), stream[b * size + i]);
    }
  }
}

// Counted before and after, as ModelExecutor::update_weights() promises.
void SimRank::write_weights(std::optional<Epoch> sealed_epoch,
                            const std::function<void(RankWeights&)>& change) {
  worker_->note_weight_write(sealed_epoch.value_or(0));
  kernel_.sleep_for(draw_duration(kernel_.random(), Duration{0}, std::chrono::microseconds(200)));
  change(weights_);
  kernel_.trace("weights", {options_.rank, weights_.of_rank(options_.rank)});
  if (on_write) on_write(sealed_epoch.has_value());
  worker_->note_weight_write(sealed_epoch.value_or(0));
}

std::uint64_t SimRank::weight_writes() const { return worker_->status().weight_writes; }

void SimRank::sleep(int level) {
  if (memory_.jobs_outstanding() > 0) {
    verdict_.violation("W6", "rank " + std::to_string(options_.rank) +
                                 " is put to sleep while loads or saves use its memory");
  }
  sleep_level_ = level;
  memory_.scribble(kernel_.random());
  for (auto& stream : slots_) stream.clear();
}

void SimRank::wake_up(Epoch sealed_epoch) {
  const bool reload = std::exchange(sleep_level_, 0) == 2;
  if (reload) write_weights(sealed_epoch, [](RankWeights& weights) { weights.reload(); });
}

}  // namespace newmoon::sim
