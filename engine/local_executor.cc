#include "engine/local_executor.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace newmoon {
namespace {

// Between two looks at what the workers have done.
constexpr Duration kPollInterval = std::chrono::microseconds(200);

}  // namespace

LocalExecutor::LocalExecutor(Parts parts) : parts_(std::move(parts)) {}

std::size_t LocalExecutor::rank_count() const {
  return std::max<std::size_t>(1, parts_.workers.size());
}

void LocalExecutor::submit(SchedulerOutput step) {
  for (StoreWorker* worker : parts_.workers) worker->start_load_kv(step.connector);
  ModelRunnerOutput output{.step_id = step.step_id, .output = StepOutput{}, .workers = {}};
  if (!step.input.sequences.empty()) output.output = parts_.runner.execute(step.input);
  output.workers = collect_reports(step, !output.output.has_value());
  outputs_.push_back(std::move(output));
}

std::vector<WorkerReport> LocalExecutor::collect_reports(const SchedulerOutput& step, bool failed) {
  std::vector<WorkerReport> reports;
  for (StoreWorker* worker : parts_.workers) {
    if (!failed) worker->wait_for_save(step.connector);
    WorkerReport report = worker->get_finished();
    // What the step should have computed is not there to be saved.
    for (const SaveJob& save : step.connector.saves) {
      if (failed) report.saves.push_back({.job_id = save.job_id, .outcome = SaveOutcome::kDropped});
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

std::optional<ModelRunnerOutput> LocalExecutor::poll() {
  if (outputs_.empty()) return std::nullopt;
  ModelRunnerOutput output = std::move(outputs_.front());
  outputs_.pop_front();
  return output;
}

void LocalExecutor::wait(Time deadline) {
  if (!outputs_.empty()) return;
  parts_.clock.sleep_until(std::min(deadline, parts_.clock.now() + kPollInterval));
}

void LocalExecutor::note_weight_write(Epoch sealed_epoch) {
  ++weight_writes_;
  for (StoreWorker* worker : parts_.workers) worker->note_weight_write(sealed_epoch);
}

Result<WeightsReport> LocalExecutor::update_weights(const WeightUpdate& update, bool digest,
                                                    Epoch sealed_epoch) {
  note_weight_write(sealed_epoch);
  const Status status = parts_.runner.update_weights(update);
  note_weight_write(sealed_epoch);
  if (!status) return std::unexpected(status.error());
  return weights_report(digest);
}

Result<WeightsReport> LocalExecutor::weights_report(bool digest) {
  WeightsReport report;
  for (StoreWorker* worker : parts_.workers) {
    report.weight_writes.push_back(worker->status().weight_writes);
  }
  if (parts_.workers.empty()) report.weight_writes.push_back(weight_writes_);
  if (!digest) return report;
  const Result<DigestIdentity> identity = parts_.runner.weights_digest();
  if (identity) {
    report.digest = *identity;
  } else {
    log(LogLevel::kWarning, "local_executor", "no digest: " + to_string(identity.error()));
  }
  return report;
}

Status LocalExecutor::sleep(int level) {
  if (Status status = parts_.runner.sleep(level); !status) return status;
  sleep_level_ = level;
  if (parts_.arena != nullptr) parts_.arena->discard();
  return {};
}

Result<WeightsReport> LocalExecutor::wake_up(bool digest, Epoch sealed_epoch) {
  const bool writes = sleep_level_ == 2;
  if (writes) note_weight_write(sealed_epoch);
  const Status status = parts_.runner.wake_up();
  if (writes) note_weight_write(sealed_epoch);
  if (!status) return std::unexpected(status.error());
  sleep_level_ = 0;
  return weights_report(digest);
}

}  // namespace newmoon
