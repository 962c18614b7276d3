// StoreScheduler: the scheduler's end of the connector. Decides what to look up,
// load and save; stamps every job with scope and epoch; pins what is being saved;
// answers resets. Knows nothing of engine types: an engine, C++ or other, describes
// its requests with the structs below.
//
// One thread (the engine's loop). No method blocks but reset_store().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "admin/lookup_key_client.h"
#include "base/clock.h"
#include "connector/fence.h"
#include "connector/metadata.h"
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
  };

  StoreScheduler(Options options, const Fence& fence, LookupKeyClient& client, Clock& clock,
                 BlockPins& pins);

  // nullopt: the answer is on its way, ask again next time. No side effect but the
  // lookup itself. While sealed: no match.
  std::optional<ExternalMatch> get_num_new_matched_tokens(const RequestId& request_id,
                                                          std::uint32_t num_tokens,
                                                          std::span<const BlockHash> block_hashes,
                                                          std::uint32_t num_computed_tokens);
  // The engine allocated `blocks` (its block table) for the match: the load goes out
  // with the next metadata. Returns its load id. num_external_tokens 0: no load.
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
  bool has_outstanding_load(const RequestId& request_id) const;
  bool has_pending_push_work() const;  // saves with pins, or loads, not yet reported

  // The Fence has just moved: forget lookups, load specs, save progress and pending
  // saves, cancel loads, tell the ranks (not waiting). Pins stay. `store` purge of
  // what was left is the caller's.
  void on_fence();
  // After on_fence(): asks every rank within the deadline. Never throws.
  ResetAnswer reset_store(Time deadline);
  // A rank's process is gone for good: its missing reports count as given.
  void rank_died(std::size_t rank);

  std::vector<StoredEvent> take_events();
};

}  // namespace newmoon
