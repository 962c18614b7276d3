// ModelExecutor over simulated ranks: each has its own queue and pace; weights move
// rank by rank with gaps, and may fail on some of them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "engine/model_executor.h"
#include "sim/rank.h"

namespace newmoon::sim {

class SimModelExecutor final : public ModelExecutor {
 public:
  struct Options {
    int steps_in_flight_max = 1;
    int vocab_size = 0;
    Duration write_gap_max{std::chrono::milliseconds(5)};
  };
  SimModelExecutor(Kernel& kernel, Options options, std::vector<SimRank*> ranks, Verdict& verdict);

  // The next update fails on these ranks; `torn`: their weights changed all the same.
  void fail_next_update(std::vector<std::size_t> ranks, bool torn);
  // A rank is gone: what waits for it ends with an error.
  void rank_died(std::size_t rank);
  // Called as each step is submitted.
  std::function<void(const SchedulerOutput&)> on_submit;
  std::size_t steps_in_flight() const { return steps_.size(); }
  std::size_t forward_steps_in_flight() const;
  // Weights are on their way to some rank.
  bool moving() const { return moving_; }

  std::size_t rank_count() const override { return ranks_.size(); }
  int steps_in_flight_max() const override { return options_.steps_in_flight_max; }
  void submit(SchedulerOutput output) override;
  std::optional<ModelRunnerOutput> poll() override;
  void wait(Time deadline) override;
  Result<WeightsReport> update_weights(const WeightUpdate& update, bool digest,
                                       Epoch sealed_epoch) override;
  Result<WeightsReport> weights_report(bool digest) override;
  Status sleep(int level) override;
  Result<WeightsReport> wake_up(bool digest, Epoch sealed_epoch) override;

 private:
  struct Step {
    std::uint64_t step_id = 0;
    std::vector<bool> wants_token;
    std::vector<std::optional<RankOutput>> outputs;  // by rank
    bool ended = false;
  };
  // Runs on every rank's forward thread, one after the other, and waits for all.
  Status on_every_rank(const std::function<void(std::size_t)>& action);
  Status write_on_every_rank(const std::function<void(std::size_t)>& action);
  void rank_ended(std::uint64_t step_id, std::size_t rank, RankOutput output);
  void end_if_complete(Step& step);
  ModelRunnerOutput combine(Step& step) const;
  Status check_alive() const;

  Kernel& kernel_;
  const Options options_;
  const std::vector<SimRank*> ranks_;
  Verdict& verdict_;
  std::vector<bool> dead_;
  std::deque<Step> steps_;
  Kernel::WaitList changed_;
  std::vector<std::size_t> failing_;
  bool torn_ = false;
  bool moving_ = false;
};

// The digest of what all ranks hold.
DigestIdentity digest_of(std::span<const toy::Weights> by_rank);

}  // namespace newmoon::sim
