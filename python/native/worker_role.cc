#include "python/native/worker_role.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "vllm_worker";

template <class Item>
void move_behind(std::vector<Item>& items, std::vector<Item>&& more) {
  std::ranges::move(more, std::back_inserter(items));
}

}  // namespace

WorkerRole::WorkerRole(StoreWorker& worker, StagedMemory& memory, KvStore& store, Executor& purge,
                       ScopeHold* hold)
    : worker_(worker), memory_(memory), store_(store), purge_(purge), hold_(hold) {}

void WorkerRole::start_load_kv(const StepMessage& step) {
  for (const LoadJob& job : step.metadata.loads) {
    loads_[job.load_id] = {job.request_id, job.blocks.size(), job.scope};
  }
  if (step.open_scope) open_scope_ = *step.open_scope;
  hold_scopes();
  worker_.start_load_kv(step.metadata);
  for (const ScopeId& scope : step.left_scopes) purge_left(scope);
  {
    MutexLock lock(mutex_);
    for (const ScopeId& scope : step.tainted_scopes) to_empty_.push_back({scope});
  }
  empty_tainted();
}

// About memory only: what is not purged now is evicted later.
void WorkerRole::purge_left(const ScopeId& scope) {
  purge_.post([this, scope] {
    if (const Status purged = store_.purge_scope(scope, true); !purged) {
      log(LogLevel::kInfo, kLog,
          "purge of scope " + scope.hex() + ": " + to_string(purged.error()));
    }
  });
}

// The scope may be opened again, so the store would take a late put of it: the puts end first.
// What fails is tried again with the next step.
void WorkerRole::empty_tainted() {
  std::vector<Tainted> scopes;
  {
    MutexLock lock(mutex_);
    scopes.swap(to_empty_);
  }
  for (const Tainted& tainted : scopes) {
    worker_.drain([this, tainted](const Result<FenceAck>& drained) {
      if (!drained) return note_emptied(tainted, std::unexpected(drained.error()));
      purge_.post(
          [this, tainted] { note_emptied(tainted, store_.purge_scope(tainted.scope, false)); });
    });
  }
}

void WorkerRole::note_emptied(Tainted tainted, const Status& emptied) {
  if (!emptied && std::has_single_bit(++tainted.failures)) {  // a store may be away for long
    log(LogLevel::kWarning, kLog,
        "scope " + tainted.scope.hex() + " is not empty yet: " + to_string(emptied.error()));
  }
  MutexLock lock(mutex_);
  if (emptied) {
    emptied_.push_back(tainted.scope);
  } else {
    to_empty_.push_back(tainted);
  }
}

void WorkerRole::wait_for_save(const StepMessage& step) {
  collect();  // frees the slots of saves that have ended
  ConnectorMetadata staged{step.metadata.epoch, {}, {}, step.metadata.weight_writes};
  for (SaveJob job : step.metadata.saves) {
    if (stage(job)) {
      staged.saves.push_back(std::move(job));
    } else {
      ++unstaged_saves_;
      report_.saves.push_back({job.job_id, SaveOutcome::kDropped});
    }
  }
  worker_.wait_for_save(staged);
}

// All blocks of the job or none.
bool WorkerRole::stage(SaveJob& job) {
  if (memory_.free_slots() < job.blocks.size()) return false;
  Save& save = staged_[job.job_id];
  save.scope = job.scope;
  for (BlockRef& block : job.blocks) {
    const std::optional<BlockId> slot = memory_.stage(block.block);
    block.block = slot.value();
    save.slots.push_back(*slot);
  }
  return true;
}

void WorkerRole::release(std::uint64_t job_id) {
  const auto staged = staged_.find(job_id);
  if (staged == staged_.end()) return;
  for (const BlockId slot : staged->second.slots) memory_.release(slot);
  staged_.erase(staged);
}

// What is open, and what jobs that have not ended are of.
void WorkerRole::hold_scopes() {
  if (hold_ == nullptr) return;
  std::map<ScopeId, std::string> used;
  for (const auto& [id, load] : loads_) used.emplace(load.scope, "");
  for (const auto& [id, save] : staged_) used.emplace(save.scope, "");
  if (open_scope_.id) used[*open_scope_.id] = open_scope_.description;
  hold_->want(std::move(used));
}

void WorkerRole::collect() {
  WorkerReport report = worker_.get_finished();
  for (const SaveReport& save : report.saves) release(save.job_id);
  report_.rank = report.rank;
  report_.weight_writes = report.weight_writes;
  if (report.unbound_epoch) report_.unbound_epoch = report.unbound_epoch;
  move_behind(report_.loads, std::move(report.loads));
  move_behind(report_.saves, std::move(report.saves));
  MutexLock lock(mutex_);
  move_behind(report_.emptied_scopes, std::exchange(emptied_, {}));
}

std::size_t WorkerRole::unfinished_saves() {
  collect();
  return staged_.size();
}

WorkerRole::Finished WorkerRole::take_finished() {
  collect();
  Finished finished;
  finished.report = std::exchange(report_, {});
  for (const LoadReport& report : finished.report.loads) {
    const auto load = loads_.extract(report.load_id);
    if (load.empty()) continue;
    finished.loads.push_back(load.mapped().request_id);
    if (report.failed_blocks.size() >= load.mapped().block_count) {
      finished.failed_loads.push_back(load.mapped().request_id);
    } else {
      finished.failed_blocks.insert(finished.failed_blocks.end(), report.failed_blocks.begin(),
                                    report.failed_blocks.end());
    }
  }
  return finished;
}

}  // namespace newmoon
