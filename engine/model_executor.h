// ModelExecutor: the ranks of one engine, seen from its loop. Steps go out, outputs
// come back in order; at most `steps_in_flight_max` are out at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "connector/metadata.h"
#include "model/model_runner.h"

namespace newmoon {

// What one schedule() call decided.
struct SchedulerOutput {
  std::uint64_t step_id = 0;
  Epoch epoch = 0;  // in which it was scheduled
  StepInput input;  // may hold no sequence: the connector's work goes on alone
  ConnectorMetadata connector;
};

// `output` is an error if the forward pass failed on any rank. A rank where it failed
// saves nothing of that step and reports the step's saves as dropped.
struct ModelRunnerOutput {
  std::uint64_t step_id = 0;
  Result<StepOutput> output;
  std::vector<WorkerReport> workers;  // in rank order; empty without a connector
};

// After weights were written (or may have been) on every rank.
struct WeightsReport {
  std::vector<std::uint64_t> weight_writes;  // by rank
  std::optional<DigestIdentity> digest;      // if it was asked for and could be had
};

class ModelExecutor {
 public:
  virtual ~ModelExecutor() = default;
  virtual std::size_t rank_count() const = 0;
  virtual int steps_in_flight_max() const = 0;

  virtual void submit(SchedulerOutput output) = 0;
  // The output of the oldest step in flight, once all ranks have ended it.
  virtual std::optional<ModelRunnerOutput> poll() = 0;
  // Blocks until poll() has something or `deadline`.
  virtual void wait(Time deadline) = 0;

  // Blocks until every rank has returned or the executor's own patience ends. Each rank
  // counts a weight write before and after it writes, also when it fails, and raises
  // its floor to `sealed_epoch`, the epoch of the seal before this write, since a write
  // may overtake steps on their way to the rank and fence messages may be lost (BIND).
  // On an error nothing is known of the weights: the engine stays sealed.
  virtual Result<WeightsReport> update_weights(const WeightUpdate& update, bool digest,
                                               Epoch sealed_epoch) = 0;
  virtual Result<WeightsReport> weights_report(bool digest) = 0;
  // Level 1 drops all KV, level 2 the weights as well. REQUIRES: no step in flight and
  // no load or save unreported.
  virtual Status sleep(int level) = 0;
  // Undoes sleep. After level 2 the weights are read anew: a weight write.
  virtual Result<WeightsReport> wake_up(bool digest, Epoch sealed_epoch) = 0;
};

}  // namespace newmoon
