// Sleep and weight updates: all that seals and adopts (rule SEAL).
#include <algorithm>
#include <utility>

#include "base/contain.h"
#include "base/log.h"
#include "engine/engine_core.h"

namespace newmoon {

// --- sleep ---

void EngineCore::sleep(int level, PauseMode mode, Time deadline,
                       std::function<void(SleepAnswer)> done) {
  if (level < 0 || level > 2) {
    SleepAnswer answer;
    answer.pause.complete = false;
    answer.status = fail(Code::kBadRequest,
                         "sleep: level " + std::to_string(level) + " is unknown; 0, 1 and 2 exist");
    done(std::move(answer));
    return;
  }
  pause_generation(mode, level >= 1, deadline,
                   [this, level, deadline, done = std::move(done)](PauseAnswer pause) {
                     after_sleep_pause(level, deadline, std::move(pause), done);
                   });
}

void EngineCore::after_sleep_pause(int level, Time deadline, PauseAnswer pause,
                                   std::function<void(SleepAnswer)> done) {
  SleepAnswer answer{.pause = std::move(pause), .status = {}};
  if (!answer.pause.complete) {
    answer.status = fail(Code::kDeadline, "sleep: generation did not stop in time");
  } else if (answer.pause.reset && !answer.pause.reset->success) {
    answer.status = fail(Code::kUnavailable, "sleep: " + answer.pause.reset->error);
  } else if (level >= 1 && sleep_) {
    answer.status = fail(Code::kBusy, "sleep: the engine is falling asleep already");
  } else if (level >= 1) {
    sleep_ = PendingSleep{.level = level,
                          .deadline = deadline,
                          .pause = std::move(answer.pause),
                          .done = std::move(done)};
    return;  // settle() goes on
  }
  done(std::move(answer));
}

// Rules PIN and STEP: memory may go only when no save reads it and no load writes it.
void EngineCore::settle_sleep() {
  if (!sleep_) return;
  const bool under_way = scheduler_.has_pending_push_work();
  if (under_way && clock_.now() < sleep_->deadline) return;
  PendingSleep due = std::move(*sleep_);
  sleep_.reset();
  SleepAnswer answer{.pause = std::move(due.pause), .status = {}};
  answer.status = under_way ? fail(Code::kDeadline, "sleep: loads or saves are still under way")
                            : go_to_sleep(due.level);
  due.done(std::move(answer));
}

Status EngineCore::go_to_sleep(int level) {
  if (!is_resident() && level <= sleep_level_) return {};  // asleep, deep enough
  if (level == 2) begin_weight_write();
  if (Status status = executor_.sleep(level); !status) return status;
  sleep_level_ = level;
  kv_resident_ = false;
  weights_resident_ = false;
  return {};
}

Result<bool> EngineCore::wake_up(std::span<const std::string> tags) {
  const auto has = [&](std::string_view tag) {
    return tags.empty() || std::ranges::find(tags, tag) != tags.end();
  };
  for (const std::string& tag : tags) {
    if (tag != "weights" && tag != "kv_cache" && tag != "scheduling") {
      return fail(Code::kBadRequest,
                  "wake_up: tag " + tag + " is unknown; weights, kv_cache and scheduling exist");
    }
  }
  if (has("weights") && !weights_resident_) {
    if (Status status = wake_weights(); !status) return std::unexpected(status.error());
  }
  if (has("kv_cache")) kv_resident_ = true;
  if (!is_resident()) return false;
  sleep_level_ = 0;
  if (Status status = resume_generation(); !status) return std::unexpected(status.error());
  return true;
}

Status EngineCore::wake_weights() {
  // After level 2 they are read anew, and need not be those that went to sleep.
  if (sleep_level_ == 2) begin_weight_write();
  const Result<WeightsReport> report =
      contain([&] { return executor_.wake_up(false, fence_.epoch()); });
  if (!report) return std::unexpected(report.error());
  weights_resident_ = true;
  if (sleep_level_ == 2) end_weight_write(true);
  return {};
}

// --- weights ---

// Before anything can write weights: from here on nothing is looked up, loaded or
// published, and what was computed before is out of reach.
void EngineCore::begin_weight_write() {
  scheduler_.seal(keeps_requests_);
  known_weights_.forget();
  adopt_is_due_ = false;
}

// After a failure only a digest can say what the weights are.
void EngineCore::end_weight_write(bool succeeded) {
  const bool known = succeeded || options_.identity == IdentityMode::kDigest;
  adopt_is_due_ = known && !update_under_way_;
  update_failed_ = update_failed_ || !known;
}

Status EngineCore::start_weight_update() {
  if (update_under_way_) {
    return fail(Code::kBadRequest, "start_weight_update: an update is under way; finish it first");
  }
  begin_weight_write();
  update_under_way_ = true;
  update_failed_ = false;
  return {};
}

Status EngineCore::update_weights(const WeightUpdate& update) {
  if (!weights_resident_) {
    return fail(Code::kBadRequest, "update_weights: the weights sleep; call wake_up first");
  }
  begin_weight_write();
  // One that throws has failed as well: it may have written a part.
  const Result<WeightsReport> report =
      contain([&] { return executor_.update_weights(update, false, fence_.epoch()); });
  end_weight_write(report.has_value());
  if (!report) return std::unexpected(report.error());
  return {};
}

Status EngineCore::finish_weight_update(const std::optional<std::string>& weight_version) {
  if (!update_under_way_) {
    return fail(Code::kBadRequest, "finish_weight_update: no update is under way");
  }
  update_under_way_ = false;
  if (weight_version) set_weight_version(*weight_version);
  if (update_failed_) {
    return fail(Code::kUnavailable,
                "finish_weight_update: a write failed, so it is unknown what the weights are; "
                "the external cache stays off until an update succeeds");
  }
  return adopt(executor_.weights_report(options_.identity == IdentityMode::kDigest));
}

Status EngineCore::run_unknown_writer(const std::function<Status()>& write) {
  begin_weight_write();
  Status status = contain(write);
  end_weight_write(status.has_value());
  return status;
}

void EngineCore::set_weight_version(const std::string& weight_version) {
  if (!known_weights_.set_label(weight_version)) return;
  const Result<WeightsReport> report = executor_.weights_report(false);
  if (report) known_weights_.bind_label(report->weight_writes);
}

// Rule BIND, before a step: whatever its epoch, a write that it meets is seen.
void EngineCore::bind_epoch() {
  if (!scheduler_.has_schedulable()) return;
  adopt_if_due();
  if (!fence_.sealed() || !fence_.bound_writes().empty()) return;
  const Result<WeightsReport> report = executor_.weights_report(false);
  if (report) fence_.bind(report->weight_writes);
}

// Without a finish, the first step that runs on the new weights opens their scope.
void EngineCore::adopt_if_due() {
  if (!adopt_is_due_) return;
  adopt_is_due_ = false;
  const Status status = adopt(executor_.weights_report(options_.identity == IdentityMode::kDigest));
  if (!status) log(LogLevel::kError, "engine_core", to_string(status.error()));
}

Status EngineCore::adopt(const Result<WeightsReport>& report) {
  if (!report) return std::unexpected(report.error());
  if (report->digest) known_weights_.set_digest(*report->digest, report->weight_writes);
  scheduler_.adopt(known_weights_.identity_at(report->weight_writes), report->weight_writes);
  return {};
}

}  // namespace newmoon
