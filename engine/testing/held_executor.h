// A LocalExecutor whose steps run when the test says, so that weights can change, or a
// fence come, between a step's scheduling and its running.
#pragma once

#include <deque>
#include <new>
#include <utility>

#include "engine/local_executor.h"

namespace newmoon::testing {

class HeldExecutor final : public ModelExecutor {
 public:
  explicit HeldExecutor(LocalExecutor& inner) : inner_(inner) {}

  bool held = false;           // else steps run at once
  bool out_of_memory = false;  // submit() throws
  int in_flight_max = 1;

  std::size_t waiting_steps() const { return steps_.size(); }
  const SchedulerOutput& oldest() const { return steps_.front(); }
  void run_one() {
    inner_.submit(std::move(steps_.front()));
    steps_.pop_front();
  }
  void release() {
    held = false;
    while (!steps_.empty()) run_one();
  }

  std::size_t rank_count() const override { return inner_.rank_count(); }
  int steps_in_flight_max() const override { return in_flight_max; }
  void submit(SchedulerOutput output) override {
    if (out_of_memory) throw std::bad_alloc();
    steps_.push_back(std::move(output));
    if (!held) run_one();
  }
  std::optional<ModelRunnerOutput> poll() override { return inner_.poll(); }
  void wait(Time deadline) override { inner_.wait(deadline); }
  Result<WeightsReport> update_weights(const WeightUpdate& update, bool digest,
                                       Epoch sealed_epoch) override {
    return inner_.update_weights(update, digest, sealed_epoch);
  }
  Result<WeightsReport> weights_report(bool digest) override {
    return inner_.weights_report(digest);
  }
  Status sleep(int level) override { return inner_.sleep(level); }
  Result<WeightsReport> wake_up(bool digest, Epoch sealed_epoch) override {
    return inner_.wake_up(digest, sealed_epoch);
  }

 private:
  LocalExecutor& inner_;
  std::deque<SchedulerOutput> steps_;
};

}  // namespace newmoon::testing
