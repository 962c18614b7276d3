// Replica: one life of one engine in the world. All of production's objects from
// EngineCore down to each rank's StoreWorker and LookupKeyServer, wired to simulated
// threads, wires, memory and time, with the oracles' witnesses in between.
//
// A replica that crashed stays as it was, without effect, until the world ends.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "admin/lookup_key_client.h"
#include "admin/lookup_key_server.h"
#include "connector/store_connector.h"
#include "engine/engine_core.h"
#include "sim/model_executor.h"
#include "sim/network.h"
#include "sim/oracle.h"
#include "sim/plan.h"
#include "sim/shared_store.h"
#include "sim/task_queue.h"

namespace newmoon::sim {

// What the parts of one world share.
struct Surroundings {
  const Plan& plan;
  Kernel& kernel;
  SimClock& clock;
  Verdict& verdict;
  Oracle& oracle;
  SharedStore& store;
  const BlockHasher& hasher;
  NetworkFaults& network;
};

class Replica {
 public:
  // `number`: which of the world's engines.
  Replica(Surroundings world, std::size_t number);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  std::function<void(const RequestOutput&)> on_output;
  void start();

  // --- for drivers, in a fiber ---
  // Runs `command` on the engine's loop and waits for it. False: the engine is dead.
  bool call(const std::function<void(EngineCore&)>& command);
  // So too; the command seals or adopts, so it may wait for weights, but for no message.
  bool call_writer(const std::function<void(EngineCore&)>& command);
  // Each checks the answer (contract W5) before it returns it. nullopt: dead.
  std::optional<PauseAnswer> pause(PauseMode mode, bool clear_cache);
  std::optional<SleepAnswer> sleep(int level, PauseMode mode);
  std::optional<CacheResetAnswer> reset(bool reset_running, bool reset_connector,
                                        bool keep_verified);

  // nullopt: dead or refused.
  std::optional<bool> wake_up();
  Status update(const WeightUpdate& update);
  // Not by update_weights(), but told to the engine.
  Status write_unknown(const WeightUpdate& update);

  // --- faults ---
  void crash(std::size_t rank);
  void stop_engine();
  void stop_ranks();
  // A rank's weights are written by somebody the engine does not know.
  void write_unannounced(std::size_t rank, const WeightUpdate& update);
  void fail_next_update(std::size_t rank, bool torn);

  // --- witnesses ---
  // Called after each event: looks whether the fence moved.
  void after_event() {
    if (fence_.epoch() != seen_epoch_) note_epoch();
  }
  // Told of each weights write, after it.
  std::function<void(bool announced)> on_write;

  bool alive() const { return engine_.alive; }
  bool crashed() const { return crashed_; }
  std::size_t number() const { return number_; }
  const Fence& fence() const { return fence_; }
  // Somebody wrote weights, and no fence came since: what its cache holds is nobody's.
  bool unfenced_write() const { return unfenced_write_; }
  bool has_work() const;
  bool has_loads() const;
  bool keeps_requests() const { return keeps_requests_; }
  std::uint64_t update_count() const { return update_count_; }
  WeightsByRank weights() const;
  // All that were in force at some moment since `since`.
  std::vector<WeightsByRank> weights_since(Time since) const;
  std::vector<Shard> shards() const;
  LayoutId layout() const { return layout_id(info_.layout); }
  // A request has ended: are saves of its blocks still under way?
  void note_finished(const RequestId& id);
  // When nothing is left to do: nothing may be held or owed any more.
  void check_at_rest();

 private:
  struct RankParts;
  struct Command {
    std::function<void(EngineCore&)> run;
    bool ended = false;
  };

  Kernel& kernel() { return world_.kernel; }
  Verdict& verdict() { return world_.verdict; }
  void make_rank(std::size_t rank);
  void make_engine();
  void watch_rank(RankParts& rank);
  void watch_engine();

  void loop();
  void run_commands();
  void idle();

  void note_epoch();
  void note_scope();
  void note_step(std::size_t rank, const SchedulerOutput& step);
  void note_submitted(const SchedulerOutput& step);
  void note_write(bool announced);
  void note_events();
  void note_purge(const Scope& scope);
  void check_write_is_met();
  void check_may_wait();
  // `fenced_after`: the epoch before whatever asked for the reset.
  void check_reset(const CacheResetAnswer& answer, Epoch fenced_after);
  void check_acks(const CacheResetAnswer& answer);
  void check_emptied(const CacheResetAnswer& answer);
  void check_outcome(const CacheResetAnswer& answer, const std::optional<ScopeId>& before);
  void check_pause(const PauseAnswer& answer, Epoch fenced_after);
  void check_in_time(std::string_view what, Time deadline);
  bool answers_may_fail() const;

  Surroundings world_;
  const std::size_t number_;
  const ModelInfo info_;
  const Incarnation incarnation_;
  Process engine_;
  std::vector<std::unique_ptr<RankParts>> ranks_;
  SimTransport transport_;
  std::unique_ptr<LookupKeyClient> client_;
  Fence fence_;
  BlockPool pool_;
  std::unique_ptr<StoreScheduler> scheduler_;
  std::unique_ptr<StoreConnector> connector_;
  std::unique_ptr<SimModelExecutor> executor_;
  SimStore purge_store_;
  SimTaskQueue purge_queue_;
  std::unique_ptr<EngineCore> core_;

  std::deque<std::shared_ptr<Command>> commands_;
  Kernel::WaitList wakeup_;
  Kernel::WaitList answered_;

  Epoch seen_epoch_ = 0;
  Epoch events_epoch_ = 0;  // of the last AllBlocksCleared, as a router sees it
  std::optional<ScopeId> seen_scope_;
  Epoch epoch_before_call_ = 0;  // of the command or step that is running
  std::uint64_t resets_in_a_row_ = 0;
  bool scheduled_since_adopt_ = false;
  bool keeps_requests_ = false;
  bool unfenced_write_ = false;
  int steps_since_write_ = 0;  // submitted since that write
  bool epoch_has_run_ = false;
  bool writes_weights_ = false;  // the running command seals or adopts
  bool crashed_ = false;
  std::uint64_t write_count_ = 0;
  std::uint64_t update_count_ = 0;
  std::map<std::uint64_t, std::uint64_t> writes_at_submit_;  // by step id
  std::vector<std::pair<Time, WeightsByRank>> history_;      // of the weights
  std::set<ScopeId> opened_;
  std::set<ScopeId> returned_;  // opened a second time
};

}  // namespace newmoon::sim
