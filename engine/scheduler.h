// Scheduler: which request computes what in the next step, and what a fence means
// for requests, blocks and the external tier.
//
// Continuous batching with chunked prefill, first come first served, under a token
// budget and a number of slots. On a shortage of blocks the newest request is
// preempted and computed again later. A request that waits for an external lookup
// or load holds up nobody. Requests whose step is in flight are not scheduled again.
//
// The cascade (docs/architecture.md) under upstream's names: reset_prefix_cache()
// and reset_connector_cache(). One thread (the engine's loop); nothing blocks but
// those two, which end by their deadline.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "connector/store_connector.h"
#include "engine/block_pool.h"
#include "engine/kv_cache_manager.h"
#include "engine/model_executor.h"
#include "engine/request.h"

namespace newmoon {

// vLLM's PauseState.
enum class PauseState : std::uint8_t {
  kUnpaused,
  kPausedNew,  // requests that have started run on, others wait
  kPausedAll,  // nothing runs
};

struct StepDuration {
  std::string_view name;  // "fence", "requests", "connector"
  Duration duration{};
};
// What a reset did; every completion of one is answered with this (contract W5).
struct CacheResetAnswer {
  bool success = true;    // false only if stale KV could still be read, or was to be
                          // removed and may not be (reset_mode remove_all)
  bool degraded = false;  // some rank did not answer
  bool fenced = true;     // false: a foreign peer on the wire
  ScopeOutcome scope = ScopeOutcome::kKept;
  std::size_t preempted = 0;         // requests that lost their KV
  std::size_t tainted_requests = 0;  // that go on with KV from before the reset
  std::vector<std::size_t> silent_ranks;
  std::uint64_t dropped_loads = 0;
  std::uint64_t dropped_saves = 0;
  std::uint64_t removed = 0;
  std::string error;  // why not, if !success or degraded
  std::vector<StepDuration> steps;
};

class Scheduler {
 public:
  struct Options {
    ResetMode reset_mode = ResetMode::kFence;  // the connector's
  };
  // Borrowed, but for `info`; all outlive the scheduler.
  struct Parts {
    ModelInfo info;
    const BlockHasher& hasher;
    Fence& fence;
    BlockPool& pool;
    StoreConnector* connector = nullptr;  // scheduler role; null: no external tier
    Clock& clock;
    // Rule PURGE: told of each unique scope that was left, for good. Must not block.
    std::function<void(const Scope&)> purge;
  };
  Scheduler(Options options, Parts parts);

  // --- requests ---
  // kBadRequest: the request can never run, or its id is taken.
  Status add_request(RequestInput input);
  // Finishes those that exist; an empty list means all. Returns how many.
  std::size_t finish_requests(std::span<const RequestId> ids, RequestStatus status);

  // --- steps ---
  // nullopt: nothing to do now. `weight_version` labels what the step samples.
  std::optional<SchedulerOutput> schedule(const std::string& weight_version);
  void update_from_output(const ModelRunnerOutput& output);
  std::vector<RequestOutput> take_outputs();
  bool has_outputs() const { return !outputs_.empty(); }

  void set_pause_state(PauseState state) { pause_state_ = state; }
  PauseState pause_state() const { return pause_state_; }

  // Once a second when idle; part of each step otherwise (StoreScheduler::housekeep()).
  void housekeep();

  // --- the cascade ---
  // Blocks until `deadline` at most. The fence is step 0 and cannot fail.
  CacheResetAnswer reset_prefix_cache(bool reset_running_requests, bool reset_connector,
                                      Time deadline, bool keep_verified = false);
  // Without a connector: success.
  ResetAnswer reset_connector_cache(Time deadline);

  // Rule SEAL. REQUIRES: called before weights are written. Requests that hold blocks
  // are preempted, to be recomputed under the new weights, but those that asked to
  // continue; `keep_requests`: all continue with the KV they have (pause mode keep with
  // clear_cache=false).
  void seal(bool keep_requests);
  // Rule SEAL. REQUIRES: every rank has its final weights.
  // nullopt: a unique scope. `weight_writes`: see Fence::bound_writes().
  void adopt(const std::optional<WeightsIdentity>& weights,
             std::vector<std::uint64_t> weight_writes = {});
  // Rule BIND: a rank met weights that its epoch is not bound to; the scheduler has
  // sealed. True once.
  bool take_unbound() { return std::exchange(unbound_, false); }
  // Memory ran out while a fence dealt with the requests: some may hold KV that they must not
  // read any more, so nothing may be scheduled again.
  bool fence_half_done() const { return fence_half_done_; }

  void rank_died(std::size_t rank);
  // In order, of both tiers; none of an epoch that is over.
  std::vector<KvEvent> take_events();

  // --- what is left to do ---
  std::size_t num_running() const { return running_.size(); }
  std::size_t num_waiting() const { return waiting_.size(); }
  // Not finished and, if `schedulable`, not held back by the pause state.
  std::vector<RequestId> unfinished(bool schedulable) const;
  bool has_schedulable() const;
  std::uint64_t last_step_id() const { return last_step_id_; }
  std::size_t steps_in_flight() const { return steps_.size(); }
  // Without those that only carry the connector's work.
  std::size_t forward_steps_in_flight() const;
  // Loads or saves not reported by every rank.
  bool has_pending_push_work() const;

 private:
  struct SequenceInFlight {
    RequestPtr request;
    std::uint32_t num_tokens = 0;
  };
  struct StepInFlight {
    std::string weight_version;
    std::vector<SequenceInFlight> sequences;
  };

  // A step in the making.
  struct StepBuilder {
    SchedulerOutput output;
    StepInFlight step;
    std::uint32_t budget = 0;  // tokens left
    bool preempted = false;
  };

  // scheduler.cc
  Status check(const RequestInput& input) const;
  bool may_run(const EngineRequest& request) const;
  void schedule_running(StepBuilder& builder);
  bool make_room(const RequestPtr& request, std::uint32_t num_tokens, StepBuilder& builder);
  void schedule_waiting(StepBuilder& builder);
  enum class Admission : std::uint8_t { kAdmitted, kLater, kShortage };
  Admission admit(const RequestPtr& request, StepBuilder& builder);
  bool make_room_waiting(EngineRequest& request, std::uint32_t num_tokens);
  Admission find_prefix(EngineRequest& request);
  Admission start_load(EngineRequest& request, std::uint32_t num_tokens);
  bool drop_a_waiting_holder(const EngineRequest& besides);
  std::uint32_t chunk(const EngineRequest& request, std::uint32_t budget) const;
  void prepare_restart(EngineRequest& request);
  void take_slot(const RequestPtr& request);
  void add_sequence(const RequestPtr& request, std::uint32_t num_tokens, StepBuilder& builder);
  void build_connector_meta(StepBuilder& builder);

  // scheduler_output.cc
  void take_reports(std::span<const WorkerReport> reports);
  void take_load(const FinishedLoad& load);
  void take_sequences(const StepInFlight& step, const ModelRunnerOutput& output);
  void take_sequence(const SequenceInFlight& sequence, const StepInFlight& step,
                     const std::optional<SampledToken>& sampled);
  void take_token(const RequestPtr& request, const SampledToken& sampled,
                  const std::string& weight_version);
  std::optional<RequestStatus> end_of(const EngineRequest& request) const;
  RequestOutput& output_of(const EngineRequest& request);
  void finish(const RequestPtr& request, RequestStatus status, const std::string& error);

  // scheduler_fence.cc
  enum class Holders : std::uint8_t { kRecompute, kRecomputeUnlessAsked, kKeep };
  struct FenceEffect {
    std::size_t preempted = 0;
    std::size_t tainted = 0;
  };
  FenceEffect after_fence(const std::optional<Scope>& left, Holders holders);
  void preempt(const RequestPtr& request);
  void drop_blocks(EngineRequest& request);
  void leave_slot(EngineRequest& request);
  void adopt_answer(const ResetAnswer& connector, CacheResetAnswer& answer) const;

  const Options options_;
  const ModelInfo info_;
  const BlockHasher& hasher_;
  Fence& fence_;
  BlockPool& pool_;
  StoreConnector* const connector_;
  Clock& clock_;
  const std::function<void(const Scope&)> purge_;
  const std::uint32_t block_size_;
  KvCacheManager kv_;

  PauseState pause_state_ = PauseState::kUnpaused;
  std::unordered_map<RequestId, RequestPtr> requests_;  // unfinished
  std::vector<RequestPtr> running_;                     // oldest first
  std::deque<RequestPtr> waiting_;                      // next first
  std::vector<bool> slot_taken_;
  std::uint64_t last_step_id_ = 0;
  std::map<std::uint64_t, StepInFlight> steps_;  // by step id
  std::vector<RequestOutput> outputs_;
  bool unbound_ = false;
  bool fence_half_done_ = false;
};

}  // namespace newmoon
