// StoreScheduler: the scheduler's end of the connector. Decides what to look up,
// load and save; stamps every job with scope and epoch; pins what is being saved;
// answers resets. Knows nothing of engine types: an engine, C++ or other, describes
// its requests with the structs below.
//
// One thread (the engine's loop). No method blocks but reset_store().
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "admin/lookup_key_client.h"
#include "base/clock.h"
#include "base/contain.h"
#include "connector/fence.h"
#include "connector/metadata.h"
#include "connector/scope_hold.h"
#include "store/kv_store.h"

namespace newmoon {

// The engine's reference counts, as far as the connector needs them (rule PIN).
class BlockPins {
 public:
  virtual ~BlockPins() = default;
  virtual void pin(BlockId block) = 0;
  virtual void unpin(BlockId block) = 0;
  // Epoch in which the block's KV was computed, min over its history (rule BIRTH);
  // 0: unknown, never publish.
  virtual Epoch birth(BlockId block) const = 0;
};

// External hit for a request: tokens beyond those computed locally. Loads are
// asynchronous: the request waits, the engine goes on.
struct ExternalMatch {
  std::uint32_t num_tokens = 0;
};

// A request as it stands after the step being built.
struct RequestProgress {
  RequestId request_id;
  std::uint32_t num_computed_tokens = 0;    // once this step has run
  std::span<const BlockHash> block_hashes;  // of its full blocks so far
  std::span<const BlockId> blocks;          // its block table
};

// A load that has ended on every rank.
struct FinishedLoad {
  RequestId request_id;
  std::uint64_t load_id = 0;
  bool cancelled = false;              // no longer wanted: free its blocks, use nothing
  std::vector<BlockId> failed_blocks;  // on any rank; empty = all loaded
  Epoch epoch = 0;                     // birth of the loaded blocks
};
struct ConnectorOutput {
  std::vector<FinishedLoad> loads;
  bool must_fence = false;  // rule BIND was broken on some rank
};

// KV events of the external tier (reference: vLLM's BlockStored, medium "cpu").
struct StoredEvent {
  Epoch epoch = 0;
  BlockHash hash;
};

struct ResetAnswer {
  bool success = true;    // false only if stale KV could still be read
  bool degraded = false;  // some rank did not answer
  bool fenced = true;     // false: foreign servers
  std::vector<std::size_t> silent_ranks;
  std::uint64_t dropped_loads = 0;
  std::uint64_t dropped_saves = 0;
  std::uint64_t removed = 0;  // remove_all
  std::string error;          // why not, if !success
};

class StoreScheduler {
 public:
  struct Options {
    int block_size = 16;
    ResetMode reset_mode = ResetMode::kFence;
    std::uint32_t min_load_tokens = 0;  // shorter hits are not worth a load
    bool save = true;
    std::size_t events_max = 100'000;  // not taken yet; beyond it the oldest are lost
  };

  // `hold`: tells the store what is in use; null: it is not told, and somebody's purge may
  // empty what this engine uses.
  StoreScheduler(Options options, const Fence& fence, LookupKeyClient& client, BlockPins& pins,
                 ScopeHold* hold = nullptr);

  // nullopt: the answer is on its way, ask again next time. No side effect but the
  // lookup itself. No match while sealed, while an earlier load of the request is not
  // reported by every rank (rule ONE-LOAD), or after one of its loads failed.
  std::optional<ExternalMatch> get_num_new_matched_tokens(const RequestId& request_id,
                                                          std::uint32_t num_tokens,
                                                          std::span<const BlockHash> block_hashes,
                                                          std::uint32_t num_computed_tokens);
  // Once a request got its blocks. The engine allocated `blocks` (its block table) for
  // the match: the load goes out with the next metadata. Returns its load id; nullopt:
  // there is no load, so num_external_tokens must be computed. Also to be called with
  // num_external_tokens 0: the first num_computed_tokens were found, not computed, so
  // they are not saved again.
  // REQUIRES: both counts are whole blocks, within `blocks` and `block_hashes`.
  std::optional<std::uint64_t> update_state_after_alloc(const RequestId& request_id,
                                                        std::span<const BlockId> blocks,
                                                        std::span<const BlockHash> block_hashes,
                                                        std::uint32_t num_computed_tokens,
                                                        std::uint32_t num_external_tokens);
  // Once a step. Saves the full blocks that are new in `progress` and born in the
  // current epoch.
  ConnectorMetadata build_connector_meta(std::span<const RequestProgress> progress);
  void update_connector_output(std::span<const WorkerReport> reports, ConnectorOutput& output);

  // Finished, aborted or preempted: forgets lookup and save progress; a load under
  // way becomes cancelled and is reported as such when every rank has ended it.
  void request_finished(const RequestId& request_id);
  // It has lost its blocks, preempted or because its load brought nothing, and will be looked up
  // anew: forgets the same, but not that a load of it failed, which the next lookup would promise
  // once more. REQUIRES: no load of it is under way.
  void blocks_dropped(const RequestId& request_id);
  bool has_outstanding_load(const RequestId& request_id) const;
  bool has_pending_push_work() const;  // saves with pins, or loads, not yet reported

  // The Fence has just moved: forget() and tell the ranks (not waiting). Purging what
  // was left is the caller's.
  void on_fence();
  // Drops lookups, load specs, save progress and events; cancels loads. Pins and what
  // the ranks have been given stay until they report (rules PIN and STEP).
  void forget();
  // After on_fence(): asks every rank within the deadline. Never throws.
  ResetAnswer reset_store(Time deadline);
  // A rank's process is gone for good: its missing reports count as given. There are no
  // matches, loads and saves any more.
  void rank_died(std::size_t rank);

  // Renews leases and probes silent ranks: part of each step and fence; call it once a
  // second when idle too.
  void housekeep();

  // Blocks stored by all ranks since the last call, in the current epoch.
  std::vector<StoredEvent> take_events();
  // Reports of jobs unknown or already reported by that rank: late or duplicated.
  std::uint64_t ignored_reports() const { return ignored_reports_; }

 private:
  // A job's way through the ranks: ended once each has reported it or died.
  struct Progress {
    std::vector<bool> reported;  // by rank
    std::size_t missing = 0;
  };
  struct Load {
    LoadJob job;
    std::size_t good_blocks = 0;  // leading ones that no rank failed
    bool cancelled = false;
    Progress progress;
  };
  struct Save {
    SaveJob job;
    bool stored = true;
    Progress progress;
  };
  struct RequestState {
    std::size_t saved_blocks = 0;  // handed out, loaded or found: not saved again
    bool load_failed = false;
  };

  // Rule SEAL: no lookup, load or publication while weights move.
  bool is_open() const { return !fence_.sealed() && dead_ranks_.empty(); }
  std::uint32_t block_tokens() const { return static_cast<std::uint32_t>(options_.block_size); }
  std::uint32_t usable_hit(std::uint32_t hit, std::uint32_t num_tokens,
                           std::size_t num_hashes) const;
  const LookupRequest& lookup_request(const RequestId& request_id, std::uint32_t num_tokens,
                                      std::span<const BlockHash> block_hashes);
  std::optional<SaveJob> next_save(const RequestProgress& progress);
  void keep_scopes();
  std::set<ScopeId> scopes_of_jobs() const;
  Progress start() const;
  bool note_report(Progress& progress, std::size_t rank);
  void note_load(std::size_t rank, const LoadReport& report);
  void note_save(std::size_t rank, const SaveReport& report);
  void finish_load(std::uint64_t load_id);
  void finish_save(std::uint64_t job_id);
  ResetAnswer summarise(const LookupKeyClient::ResetAnswer& reply) const;

  const Options options_;
  const Fence& fence_;
  LookupKeyClient& client_;
  BlockPins& pins_;
  ScopeHold* const hold_;

  std::unordered_map<RequestId, LookupRequest> lookups_;
  std::unordered_map<RequestId, RequestState> requests_;
  std::unordered_map<RequestId, std::uint64_t> load_of_request_;  // until every rank reported
  std::map<std::uint64_t, Load> loads_;                           // by load id
  std::map<std::uint64_t, Save> saves_;                           // by job id
  std::vector<std::uint64_t> pending_loads_;                      // in no metadata yet
  std::vector<FinishedLoad> finished_loads_;                      // to be told
  std::deque<StoredEvent> events_;
  std::set<std::size_t> dead_ranks_;
  std::uint64_t last_load_id_ = 0;
  std::uint64_t last_job_id_ = 0;
  std::uint64_t ignored_reports_ = 0;
  ErrorCounter thrown_{"store_scheduler"};
};

}  // namespace newmoon
