// A rolling update: one engine after the other gets the new weights while the rest go on
// answering with what they have, so that two identities are live on one store.
#include <optional>
#include <set>
#include <thread>

#include "base/thread_annotations.h"
#include "cli/rollout_run.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr int kBatchRequests = 3;  // an engine runs at a time

// A thread an engine, which asks its engine whatever comes next.
class RollingCycle {
 public:
  RollingCycle(RolloutRun& run, int cycle, CycleReport& row)
      : run_(run),
        cycle_(cycle),
        update_calls_(weight_update_calls(row)),
        row_(row),
        asked_(run.fleet.size()) {}

  Status run();

 private:
  // One engine's share of the cycle.
  Status serve(std::size_t engine);
  Status change_weights(std::size_t engine);
  Status answer_first(std::size_t engine);
  Status answer_batch(std::size_t engine);

  int next_batch(std::size_t engine) NM_EXCLUDES(mutex_);
  Json requests_of(std::size_t engine, int batch) NM_EXCLUDES(mutex_);
  bool others_update(std::size_t engine) NM_EXCLUDES(mutex_);  // its own turn has yet to come
  bool goes_on() NM_EXCLUDES(mutex_);

  RolloutRun& run_;
  const int cycle_;
  const std::vector<ControlCall> update_calls_;

  Mutex mutex_;  // also for run_'s books
  CycleReport& row_ NM_GUARDED_BY(mutex_);
  int batches_ NM_GUARDED_BY(mutex_) = 0;                   // different ones
  std::vector<int> answered_ NM_GUARDED_BY(mutex_);         // batches, the latest last
  std::vector<std::set<int>> asked_ NM_GUARDED_BY(mutex_);  // of each engine, with its weights
  std::size_t resumed_ NM_GUARDED_BY(mutex_) = 0;           // engines that run on the new weights
  std::size_t turn_ NM_GUARDED_BY(mutex_) = 0;  // the engine that updates, or is the next to
  std::optional<Error> failure_ NM_GUARDED_BY(mutex_);
};

Status RollingCycle::run() {
  {
    std::vector<std::jthread> threads;
    for (std::size_t engine = 0; engine < run_.fleet.size(); ++engine) {
      threads.emplace_back([this, engine] {
        const Status served = serve(engine);
        if (served) return;
        MutexLock lock(mutex_);
        if (!failure_) failure_ = served.error();
      });
    }
  }
  MutexLock lock(mutex_);
  if (failure_) return std::unexpected(*failure_);
  return {};
}

Status RollingCycle::serve(std::size_t engine) {
  while (others_update(engine)) {
    if (const Status answered = answer_batch(engine); !answered) return answered;
  }
  if (const Status changed = change_weights(engine); !changed) return changed;
  if (const Status answered = answer_first(engine); !answered) return answered;
  // Some more, so that both identities put and get at the same time for a while.
  if (const Status answered = answer_batch(engine); !answered) return answered;
  {
    MutexLock lock(mutex_);
    ++turn_;
  }
  while (goes_on()) {
    if (const Status answered = answer_batch(engine); !answered) return answered;
  }
  return {};
}

Status RollingCycle::change_weights(std::size_t engine) {
  show_progress(cycle_, run_.options.cycles,
                "engine " + std::to_string(engine) + ": pause -> update -> reset -> resume");
  ChildProcess& process = run_.fleet.engine(engine);
  if (const Status started = run_.start_in_flight(cycle_, engine); !started) return started;
  int earlier_replies = kInFlightPerEngine;
  for (const ControlCall& call : update_calls_) {
    if (const Status sent = process.send(call.request); !sent) return sent;
    for (; earlier_replies > 0; --earlier_replies) {
      const Result<Json> submitted = process.receive(kGenerateTimeout);
      if (!submitted) return std::unexpected(submitted.error());
    }
    const Result<Json> reply = process.receive(call.timeout);
    if (!reply) return std::unexpected(reply.error());
    MutexLock lock(mutex_);
    note_control_reply(call, *reply, row_);
  }
  {
    MutexLock lock(mutex_);
    ++resumed_;
    asked_[engine].clear();
  }
  const Result<Json> in_flight = process.call({{"op", "collect"}}, kGenerateTimeout);
  if (!in_flight) return std::unexpected(in_flight.error());
  MutexLock lock(mutex_);
  run_.take(*in_flight, row_);
  return {};
}

Status RollingCycle::answer_first(std::size_t engine) {
  const Result<Json> first = run_.fleet.engine(engine).call(
      {{"op", "generate"},
       {"requests", Json::array({run_.workload.first_request(cycle_, engine)})},
       {"flush", true}},
      kGenerateTimeout);
  if (!first) return std::unexpected(first.error());
  MutexLock lock(mutex_);
  run_.take_first(engine, *first, row_);
  return {};
}

Status RollingCycle::answer_batch(std::size_t engine) {
  const int batch = next_batch(engine);
  const Result<Json> reply = run_.fleet.engine(engine).call(
      {{"op", "generate"}, {"requests", requests_of(engine, batch)}}, kGenerateTimeout);
  if (!reply) return std::unexpected(reply.error());
  MutexLock lock(mutex_);
  answered_.push_back(batch);
  if (engine >= resumed_ && resumed_ > 0) {
    row_.two_identity_requests += reply->at("outputs").size();
  }
  run_.take(*reply, row_);
  return {};
}

// What was answered last, by another engine if this one has asked it already: its blocks have
// just been stored, often under the other identity. Else something new.
int RollingCycle::next_batch(std::size_t engine) {
  MutexLock lock(mutex_);
  for (auto batch = answered_.rbegin(); batch != answered_.rend(); ++batch) {
    if (asked_[engine].insert(*batch).second) return *batch;
  }
  asked_[engine].insert(batches_);
  return batches_++;
}

Json RollingCycle::requests_of(std::size_t engine, int batch) {
  MutexLock lock(mutex_);
  const std::string suffix =
      "-engine" + std::to_string(engine) + (engine < resumed_ ? "" : "-before");
  Json requests = Json::array();
  for (int k = batch * kBatchRequests; k < (batch + 1) * kBatchRequests; ++k) {
    requests.push_back(run_.workload.request(cycle_, k, suffix));
  }
  return requests;
}

bool RollingCycle::others_update(std::size_t engine) {
  MutexLock lock(mutex_);
  return turn_ < engine && !failure_;
}

bool RollingCycle::goes_on() {
  MutexLock lock(mutex_);
  const int answers = static_cast<int>(answered_.size()) * kBatchRequests;
  return (turn_ < run_.fleet.size() || answers < run_.options.requests) && !failure_;
}

}  // namespace

Status run_rolling_cycle(RolloutRun& run, int cycle, CycleReport& row) {
  return RollingCycle(run, cycle, row).run();
}

}  // namespace newmoon
