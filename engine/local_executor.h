// LocalExecutor: a ModelRunner and the connector's workers of all ranks, in this
// process. Each rank owns a share of the layers of the one model (model/kv_arena.h)
// and has queues and a floor of its own. A step runs inside submit().
//
// One thread (the engine's loop).
#pragma once

#include <deque>
#include <vector>

#include "connector/store_worker.h"
#include "engine/model_executor.h"
#include "model/kv_arena.h"

namespace newmoon {

class LocalExecutor final : public ModelExecutor {
 public:
  struct Parts {
    ModelRunner& runner;
    std::vector<StoreWorker*> workers;  // by rank; empty: one rank, no external tier
    KvArena* arena = nullptr;           // given back to the system in sleep, if set
    Clock& clock;
  };
  explicit LocalExecutor(Parts parts);

  std::size_t rank_count() const override;
  int steps_in_flight_max() const override { return 1; }
  void submit(SchedulerOutput output) override;
  std::optional<ModelRunnerOutput> poll() override;
  // Workers report only within a step, so this sleeps a moment at most.
  void wait(Time deadline) override;

  Result<WeightsReport> update_weights(const WeightUpdate& update, bool digest,
                                       Epoch sealed_epoch) override;
  Result<WeightsReport> weights_report(bool digest) override;
  Status sleep(int level) override;
  Result<WeightsReport> wake_up(bool digest, Epoch sealed_epoch) override;

  // Around a weight write that does not come through update_weights().
  void note_weight_write(Epoch sealed_epoch);

 private:
  std::vector<WorkerReport> collect_reports(const SchedulerOutput& step, bool failed);

  Parts parts_;
  std::deque<ModelRunnerOutput> outputs_;
  std::uint64_t weight_writes_ = 0;  // counted here if there are no workers
  int sleep_level_ = 0;
};

}  // namespace newmoon
