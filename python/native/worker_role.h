// WorkerRole: what a rank of vLLM does with each step's message. StoreWorker moves the
// bytes; this puts staging in front of its saves, tells vLLM's terms (which requests'
// loads ended, which blocks failed) from its reports, and purges left scopes.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/executor.h"
#include "base/thread_annotations.h"
#include "connector/scope_hold.h"
#include "connector/store_worker.h"
#include "python/native/codec.h"
#include "python/native/staged_memory.h"

namespace newmoon {

// Belongs to the rank's forward thread; close() the worker before destruction.
class WorkerRole {
 public:
  // What ended since the last call.
  struct Finished {
    WorkerReport report;  // for the scheduler
    std::vector<RequestId> loads;
    // Those of `loads` that brought nothing. A load refused by a fence is one of them, and
    // then not even the request's local prefix may be used (rule ONE-LOAD).
    std::vector<RequestId> failed_loads;
    std::vector<BlockId> failed_blocks;  // of loads that brought something
  };

  // All must outlive the role and `purge`'s tasks. `hold`: tells the store which scopes are
  // used; one rank of an engine is enough.
  WorkerRole(StoreWorker& worker, StagedMemory& memory, KvStore& store, Executor& purge,
             ScopeHold* hold = nullptr);

  // Once a step each, with the same message.
  void start_load_kv(const StepMessage& step);
  // Copies what is to be saved and queues it. What finds no free slot is dropped; it is
  // computed again some day.
  void wait_for_save(const StepMessage& step);
  Finished take_finished();

  std::uint64_t unstaged_saves() const { return unstaged_saves_; }
  // Jobs that are queued or running.
  std::size_t unfinished_saves();

 private:
  struct Load {
    RequestId request_id;
    std::size_t block_count = 0;
    ScopeId scope;
  };
  struct Save {
    std::vector<BlockId> slots;
    ScopeId scope;
  };

  struct Tainted {
    ScopeId scope;
    std::uint64_t failures = 0;
  };

  bool stage(SaveJob& job);
  void release(std::uint64_t job_id);
  void collect();
  void hold_scopes();
  void purge_left(const ScopeId& scope);
  void empty_tainted();
  void note_emptied(Tainted tainted, const Status& emptied);

  StoreWorker& worker_;
  StagedMemory& memory_;
  KvStore& store_;
  Executor& purge_;
  ScopeHold* const hold_;
  std::unordered_map<std::uint64_t, Load> loads_;   // by load id
  std::unordered_map<std::uint64_t, Save> staged_;  // by job id
  StepMessage::OpenScope open_scope_;
  WorkerReport report_;  // not yet taken
  Mutex mutex_;
  std::vector<Tainted> to_empty_ NM_GUARDED_BY(mutex_);  // no attempt is under way
  std::vector<ScopeId> emptied_ NM_GUARDED_BY(mutex_);   // not yet told
  std::uint64_t unstaged_saves_ = 0;
};

}  // namespace newmoon
