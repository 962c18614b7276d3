// SchedulerRole: the scheduler's end of the connector for an engine in Python. Fence,
// StoreScheduler and LookupKeyClient decide; this keeps what they must be told of each
// request (hashes, block table, births), since vLLM tells it step by step, and makes one
// message of a step's decisions.
//
// One thread (the engine's loop). Nothing blocks but reset(), and, for the time that a rank
// takes to answer, weights_were_written() and the first call after the fence was sealed:
// both ask the ranks how often their weights were written.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "connector/fence.h"
#include "connector/known_weights.h"
#include "connector/store_connector.h"
#include "hash/identity_mode.h"
#include "hash/sha256.h"
#include "python/native/block_births.h"
#include "python/native/codec.h"

namespace newmoon {

class SchedulerRole {
 public:
  struct Options {
    std::string name_space;
    std::string model;
    std::string layout;
    StoreScheduler::Options scheduler;
    IdentityMode identity = IdentityMode::kUnique;
    Duration lookup_timeout = std::chrono::seconds(1);
    // For lookups of one step to be answered within it, all together. An engine that has
    // nothing else to do would take an empty step instead.
    Duration lookup_wait = std::chrono::milliseconds(2);
    Duration adopt_timeout = std::chrono::seconds(1);  // for the ranks to answer; then a pause
  };
  // The transport and the others must outlive the role.
  SchedulerRole(Options options, ClientTransport& transport, Clock& clock, Random& random);

  // --- requests ---
  // How many hashes of the request are known; the caller passes those behind.
  std::size_t hash_count(const RequestId& request_id) const;
  void add_hashes(const RequestId& request_id, std::span<const BlockHash> more);

  // External tokens beyond the `num_computed_tokens` found locally, for a request that
  // holds no blocks. nullopt: ask again next step.
  std::optional<std::uint32_t> match(const RequestId& request_id, std::uint32_t num_tokens,
                                     std::uint32_t num_computed_tokens);
  // The request got its blocks; the first num_computed_tokens hold KV, the next
  // num_external_tokens are to be loaded. False: there is no load, and who promised those
  // tokens was wrong.
  bool update_state_after_alloc(const RequestId& request_id, std::vector<BlockId> blocks,
                                std::uint32_t num_computed_tokens,
                                std::uint32_t num_external_tokens);
  void request_finished(const RequestId& request_id);

  // --- a step ---
  // The request computes num_scheduled_tokens behind num_computed_tokens in it.
  // `blocks`: its whole block table if `replace`, else what is new in it. `save`: what it
  // computes may be saved.
  void schedule(const RequestId& request_id, std::span<const BlockId> blocks, bool replace,
                std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens,
                bool save = true);
  // `runs_on`: requests also compute that schedule() was not told of. That is right for a
  // step in the middle of a block: the block's birth is that of its first token, and its
  // end is told.
  StepMessage build_connector_meta(bool runs_on = false);
  struct Output {
    // Weights were written that nobody announced (rule BIND). The fence has moved; the
    // engine must forget what its own cache holds.
    bool must_fence = false;
    // Requests whose load a fence cancelled, whatever its ranks said of it: they must drop
    // all their blocks, the local prefix too (rule ONE-LOAD).
    std::vector<RequestId> cancelled;
  };
  Output update_connector_output(std::span<const WorkerReport> reports);
  // Loads that vLLM waits for: they hold its blocks, so a pause should wait for them.
  bool has_loads() const { return outstanding_loads_ > 0; }
  // One of them is the request's. A fence cancels it; its blocks are dropped once every rank
  // has ended it.
  bool is_loading(const RequestId& request_id) const;

  // --- fences ---
  struct Reset {
    ScopeOutcome scope = ScopeOutcome::kNew;
    ResetAnswer answer;
  };
  // Rule FIRST: the fence, then everything else within the deadline.
  Reset reset(bool keep_verified, Time deadline);
  // The fence alone: the ranks are told, and not waited for.
  ScopeOutcome fence_only();
  // Rule SEAL. It opens again at the first step after unseal().
  void seal();
  void unseal();

  // --- weights ---
  // Rule BIND, before the engine uses what it found in its own cache: true if a rank has written
  // weights that nobody announced. The fence has moved then, and the engine must forget what that
  // cache holds. Asks the ranks, once a step.
  bool weights_were_written();
  // Whether all of them said so in this step. If not, what that cache holds may be of weights of
  // before, and nothing of it may be used in this step; once they answer, it is known what must be
  // forgotten. So a rank that is silent for long, or busy, costs hits and no more.
  bool writes_are_known() const { return writes_are_known_; }
  // The next call would open a scope. Whoever knows the weights says so first, with the
  // count of writes at which each rank had them; else, or if a rank wrote since, the scope is
  // unique. Kept until the next seal, or a reset while sealed.
  bool adopt_is_due() const;
  void identify(std::span<const Sha256Digest> rank_digests, std::vector<std::uint64_t> writes);
  // The user's label of the weights (IdentityMode::kTrustedLabel). It counts if it was set to
  // something new since the last seal, in a namespace, and is not vLLM's "default"; and while no
  // rank writes, of which they are asked here.
  void set_weight_version(const std::string& weight_version);

  const Fence& fence() const { return fence_; }
  std::uint64_t ignored_reports() const { return scheduler_.ignored_reports(); }

 private:
  struct Tracked {
    std::vector<BlockHash> hashes;
    std::vector<BlockId> blocks;
    Epoch history = BlockBirths::kNoHistory;  // oldest birth of what it attends to
    std::size_t known_end = 0;                // blocks found, loaded by us, or computed
    std::optional<std::uint64_t> load;        // id of the load under way
    std::size_t load_begin = 0;               // blocks that are being loaded
    std::size_t load_end = 0;
  };
  // A scope named by a digest, under which requests ran until an explicit reset left it, with the
  // writes it was bound to. A reset may be all that tells of weights that no rank saw written.
  struct Doubt {
    Scope scope;
    std::vector<std::uint64_t> writes;
  };
  // A name under which KV of other weights is stored, until every rank has emptied it.
  struct Taint {
    WeightsIdentity weights;
    ScopeId scope;
    std::size_t ranks_left = 0;
  };
  struct Progress {
    RequestId request_id;
    std::uint32_t num_computed_tokens = 0;
  };

  ScopeOutcome fence_explicitly(bool keep_verified);
  void forget_weights();
  void adopt_if_due();
  Result<std::vector<std::uint64_t>> count_writes(Duration timeout);
  bool settle_doubt(const std::optional<WeightsIdentity>& identity,
                    std::span<const std::uint64_t> writes);
  bool may_name(const WeightsIdentity& weights) const;
  void note_emptied(std::span<const WorkerReport> reports);
  std::optional<StepMessage::OpenScope> news_of_scope();
  void after_fence(const std::optional<Scope>& left);
  std::optional<ExternalMatch> ask(const RequestId& request_id, const Tracked& request,
                                   std::uint32_t num_tokens, std::uint32_t num_computed_tokens);
  void note_foreign(Tracked& request, std::size_t begin, std::size_t end);
  void note_computed(Tracked& request, std::uint32_t num_computed_tokens,
                     std::uint32_t num_scheduled_tokens);
  void note_loaded(Tracked& request, const FinishedLoad& load);

  const Options options_;
  const std::uint32_t block_size_;
  ClientTransport& transport_;
  Clock& clock_;
  Fence fence_;
  LookupKeyClient client_;
  BlockBirths births_;
  StoreScheduler scheduler_;
  StoreConnector connector_;

  std::unordered_map<RequestId, Tracked> requests_;
  std::vector<Progress> progress_;       // of the step in the making, what may be saved
  bool scheduled_ = false;               // anything, in that step
  std::vector<ScopeId> left_scopes_;     // in no message yet
  std::vector<ScopeId> tainted_scopes_;  // in no message yet
  std::size_t outstanding_loads_ = 0;    // not reported by all ranks
  Duration wait_left_;                   // of lookup_wait, in this step
  bool adopt_due_ = true;
  Time adopt_after_{};             // not before
  bool ranks_were_asked_ = false;  // in this step, how often they wrote weights
  bool writes_are_known_ = false;  // and all have answered
  Epoch told_epoch_ = 0;           // whose scope the ranks were told
  KnownWeights known_weights_;
  std::optional<Doubt> doubt_;  // until the digest is taken anew, or weights are written
  std::vector<Taint> taints_;
  // By rank, when weights_were_written() was asked last. nullopt: not since the last seal, so that
  // the engine's own cache holds nothing; no ranks: one did not say.
  std::optional<std::vector<std::uint64_t>> seen_writes_;
};

}  // namespace newmoon
