// One rank of an engine: a forward thread with its queue of work, its weights, its
// memory, and the toy model over them. It drives the rank's StoreWorker as a real
// worker process does.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "connector/store_worker.h"
#include "engine/model_executor.h"
#include "sim/block_memory.h"
#include "sim/network.h"

namespace newmoon::sim {

// What decides a rank's KV. A GGUF replaces everything, tensors and an adapter are
// laid over it.
struct RankWeights {
  std::uint64_t gguf = 0;
  std::uint64_t tensors = 0;
  std::uint64_t lora = 0;

  void apply(const WeightUpdate& update);
  // What level 2 sleep and wake-up leave of them.
  void reload() { tensors = 0; }
  toy::Weights of_rank(std::size_t rank) const;
  friend bool operator==(const RankWeights&, const RankWeights&) = default;
};

struct RankOptions {
  std::size_t rank = 0;
  int block_size = 4;
  int slots = 4;
  // Paged: KV is read from and written to the blocks directly. Otherwise a slot owns
  // a stream, filled from the blocks at a restart; full blocks are written back.
  bool paged = false;
  bool writes_overtake = false;  // weights change ahead of the steps that are queued
  Duration step_max{std::chrono::milliseconds(1)};
  unsigned stall_percent = 0;  // a step takes up to stall_max instead
  Duration stall_max{std::chrono::milliseconds(40)};
};

// One rank's share of a step's result.
struct RankOutput {
  std::vector<std::uint64_t> logits;  // parallel to the step's sequences
  std::optional<WorkerReport> report;
};

class SimRank {
 public:
  SimRank(Kernel& kernel, RankOptions options, const Process& process, SimMemory& memory,
          Verdict& verdict);

  void attach(StoreWorker& worker) { worker_ = &worker; }  // before the first step
  void initial_weights(const WeightUpdate& weights) { weights_.apply(weights); }
  // Told as each step begins and after each weights write.
  std::function<void(const SchedulerOutput&)> on_step;
  std::function<void(bool announced)> on_write;

  void submit(const SchedulerOutput& step, std::function<void(RankOutput)> done);
  // Runs `action` on the forward thread, before (`ahead`) or behind what is queued.
  void call(std::function<void()> action, bool ahead);

  // --- on the forward thread, within call() ---
  // `sealed_epoch`: see StoreWorker::note_weight_write(); nullopt: the engine does not
  // know of the write.
  void write_weights(std::optional<Epoch> sealed_epoch,
                     const std::function<void(RankWeights&)>& change);
  void sleep(int level);  // drops all KV; level 2 frees the weights too
  void wake_up(Epoch sealed_epoch);

  const RankWeights& weights() const { return weights_; }
  std::uint64_t weight_writes() const;
  std::size_t queued() const { return work_.size() + (running_ ? 1 : 0); }
  std::uint64_t steps_ended() const { return steps_ended_; }
  const RankOptions& options() const { return options_; }

 private:
  void run();
  void enqueue(std::function<void()> work, bool ahead);
  Duration duration_of(const SchedulerOutput& step);
  RankOutput run_step(const SchedulerOutput& step);
  void start_jobs(const ConnectorMetadata& metadata);
  WorkerReport finish_jobs(const ConnectorMetadata& metadata);
  std::uint64_t run_sequence(const SequenceStep& sequence);
  toy::History attend_to(const SequenceStep& sequence);
  void append(const SequenceStep& sequence, std::size_t position, toy::KvEntry entry);
  void write_back(const SequenceStep& sequence);
  bool valid(const SequenceStep& sequence) const;

  Kernel& kernel_;
  const RankOptions options_;
  const Process& process_;
  SimMemory& memory_;
  Verdict& verdict_;
  StoreWorker* worker_ = nullptr;
  RankWeights weights_;
  std::uint64_t steps_ended_ = 0;
  std::vector<std::vector<toy::KvEntry>> slots_;
  std::deque<std::function<void()>> work_;
  bool running_ = false;
  int sleep_level_ = 0;
};

}  // namespace newmoon::sim
