// EngineCore: an engine without a thread. Requests go in, step() moves everything on
// by one step, outputs come out; pause, reset, sleep and weight updates go through
// here, under upstream's names (vLLM v1/engine/core.py).
//
// One thread drives it (engine_loop.h has one; the simulator is another). Nothing
// blocks but what says so. The engine never waits for ever: whatever waits for
// requests, steps or ranks has a deadline, looked at by step().
//
// Upstream's _reset_caches also clears multimodal and encoder caches. Models here
// are text-only and have neither.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "connector/known_weights.h"
#include "engine/scheduler.h"
#include "hash/identity_mode.h"

namespace newmoon {

enum class PauseMode : std::uint8_t {
  kAbort,  // all requests are aborted
  kWait,   // those that have started run to their end
  kKeep,   // all are frozen where they are
};
// "abort", "wait", "keep".
std::optional<PauseMode> parse_pause_mode(std::string_view name);
std::string_view to_string(PauseMode mode);

struct PauseAnswer {
  // False: something still runs, named below; the engine stays paused all the same.
  bool complete = true;
  std::vector<RequestId> running_requests;
  std::size_t steps_in_flight = 0;
  std::optional<CacheResetAnswer> reset;  // with clear_cache
  Duration duration{};                    // until here, the reset included
};
struct SleepAnswer {
  PauseAnswer pause;
  // kDeadline: what must end first has not; the engine is paused, not asleep.
  Status status;
};

class EngineCore {
 public:
  struct Options {
    Scheduler::Options scheduler;
    IdentityMode identity = IdentityMode::kUnique;
    // That of the scopes. A label is trusted only inside one that is not empty: it
    // must hold a run id.
    std::string name_space;
    std::string weight_version = "default";  // of the weights loaded at start
  };
  // All outlive the core. `executor` is called on the core's thread only.
  struct Parts {
    Scheduler::Parts scheduler;
    ModelExecutor& executor;
  };
  EngineCore(Options options, Parts parts);

  // Adopts the weights loaded now; until then the engine is sealed. Blocks on the
  // executor. kBadRequest: the model's figures do not fit each other.
  Status start();

  // --- requests ---
  Status add_request(RequestInput input);
  // Aborted requests end with an output. Empty: all. Returns how many there were.
  std::size_t abort_requests(std::span<const RequestId> ids);

  // --- the loop ---
  // Takes what the executor has finished, gives it what there is to do, and answers
  // pauses and sleeps that are complete or late. Blocks only as far as
  // ModelExecutor::submit() does, and for resets that fall due.
  std::vector<RequestOutput> step();
  // Once a second, whether or not there is work: see Scheduler::housekeep().
  void housekeep() { scheduler_.housekeep(); }
  // Whether step() has, or may soon have, something to do.
  bool has_work() const;
  // When step() has something to answer at the latest.
  std::optional<Time> next_deadline() const;

  // --- pause ---
  // `done` comes from a later step(), once complete or by `deadline`, and tells the truth;
  // what was said before the pause has left step() by then. With `clear_cache` the caches are reset
  // in either case, for which the last fifth of the time is kept.
  void pause_generation(PauseMode mode, bool clear_cache, Time deadline,
                        std::function<void(PauseAnswer)> done);
  // kBadRequest: asleep. A pause still pending is answered as not complete.
  Status resume_generation();
  bool is_paused() const { return scheduler_.pause_state() != PauseState::kUnpaused; }

  // --- resets; block until `deadline` at most ---
  CacheResetAnswer reset_prefix_cache(bool reset_running_requests, bool reset_connector,
                                      Time deadline, bool keep_verified = false);
  // Upstream's _reset_caches(reset_running_requests=True, reset_connector=True).
  CacheResetAnswer reset_caches(Time deadline);

  // --- sleep ---
  // Level 0 only pauses, 1 drops all KV, 2 the weights as well. Levels above 0 clear
  // the caches and wait for saves and loads under way, since their memory goes.
  void sleep(int level, PauseMode mode, Time deadline, std::function<void(SleepAnswer)> done);
  // Tags "weights", "kv_cache", "scheduling"; none: all. Generation resumes once all
  // memory is back; returns whether it has. Blocks on the executor.
  Result<bool> wake_up(std::span<const std::string> tags);
  // Paused or asleep, as upstream.
  bool is_sleeping() const { return is_paused() || !is_resident(); }

  // --- weights (rule SEAL); block on the executor ---
  Status start_weight_update();  // kBadRequest: one is under way
  // Outside of start/finish, the weights are adopted at the next step scheduled. After
  // an error only where a digest can say what they are; else the engine stays sealed
  // until an update succeeds.
  Status update_weights(const WeightUpdate& update);
  // Opens the scope of the weights that all ranks have now. `weight_version` labels
  // them. On an error the engine stays sealed: requests run, without external tier.
  // Ranks that counted different numbers of weight writes share weights that nothing
  // names: their scope is unique.
  Status finish_weight_update(const std::optional<std::string>& weight_version);
  // For anything else that may write weights on the ranks: seals, runs `write` (which
  // must return only when every rank has, and see that the ranks count it as a weight
  // write), and goes on as update_weights() does.
  Status run_unknown_writer(const std::function<Status()>& write);

  const std::string& weight_version() const { return known_weights_.label(); }
  // Labels the weights that the ranks have at this moment, until one of them is written.
  void set_weight_version(const std::string& weight_version);

  // A rank's process is gone for good.
  void rank_died(std::size_t rank) { scheduler_.rank_died(rank); }
  std::vector<KvEvent> take_events() { return scheduler_.take_events(); }

  const Scheduler& scheduler() const { return scheduler_; }
  const Fence& fence() const { return fence_; }

 private:
  struct PendingPause {
    PauseMode mode = PauseMode::kAbort;
    bool clear_cache = false;
    Time started{};
    Time wait_until{};  // then it is late; a reset takes the rest until `deadline`
    Time deadline{};
    std::function<void(PauseAnswer)> done;
  };
  struct PendingSleep {
    int level = 0;
    Time deadline{};
    PauseAnswer pause;
    std::function<void(SleepAnswer)> done;
  };

  void collect_outputs();
  void submit_steps();
  void settle();
  bool is_complete(const PendingPause& pause) const;
  void answer(const PendingPause& pause, bool complete);
  void after_sleep_pause(int level, Time deadline, PauseAnswer pause,
                         std::function<void(SleepAnswer)> done);
  void settle_sleep();
  Status go_to_sleep(int level);
  Status wake_weights();
  bool is_resident() const { return weights_resident_ && kv_resident_; }

  void begin_weight_write();
  void end_weight_write(bool succeeded);
  void bind_epoch();
  void adopt_if_due();
  Status adopt(const Result<WeightsReport>& report);

  const Options options_;
  const ModelInfo info_;
  Fence& fence_;
  Clock& clock_;
  ModelExecutor& executor_;
  Scheduler scheduler_;

  std::list<PendingPause> pauses_;  // oldest first
  std::optional<PendingSleep> sleep_;
  bool keeps_requests_ = false;  // paused with keep and clear_cache=false

  int sleep_level_ = 0;
  bool weights_resident_ = true;
  bool kv_resident_ = true;

  KnownWeights known_weights_;
  bool update_under_way_ = false;  // between start and finish
  bool update_failed_ = false;     // a write since start
  bool adopt_is_due_ = false;      // at the next step scheduled
};

}  // namespace newmoon
