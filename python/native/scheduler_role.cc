#include "python/native/scheduler_role.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "hash/scope_text.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "vllm_scheduler";

}  // namespace

SchedulerRole::SchedulerRole(Options options, ClientTransport& transport, Clock& clock,
                             Random& random)
    : options_(std::move(options)),
      block_size_(static_cast<std::uint32_t>(options_.scheduler.block_size)),
      transport_(transport),
      clock_(clock),
      fence_({options_.name_space, options_.model, options_.layout, draw_incarnation(random)}),
      client_(transport, clock, {.lookup_timeout = options_.lookup_timeout, .foreign = {}}),
      scheduler_(options_.scheduler, fence_, client_, births_),
      connector_(StoreConnector::for_scheduler(scheduler_)),
      wait_left_(options_.lookup_wait),
      known_weights_(options_.identity, options_.name_space) {}

// --- requests ---

std::size_t SchedulerRole::hash_count(const RequestId& request_id) const {
  const auto request = requests_.find(request_id);
  return request == requests_.end() ? 0 : request->second.hashes.size();
}

void SchedulerRole::add_hashes(const RequestId& request_id, std::span<const BlockHash> more) {
  std::vector<BlockHash>& hashes = requests_[request_id].hashes;
  hashes.insert(hashes.end(), more.begin(), more.end());
}

std::optional<std::uint32_t> SchedulerRole::match(const RequestId& request_id,
                                                  std::uint32_t num_tokens,
                                                  std::uint32_t num_computed_tokens) {
  adopt_if_due();
  Tracked& request = requests_[request_id];
  if (!request.blocks.empty()) {
    // It was preempted, or its load brought nothing: what it had is gone.
    scheduler_.blocks_dropped(request_id);
    request.blocks.clear();
    request.load_begin = request.load_end = 0;
  }
  std::optional<ExternalMatch> match = ask(request_id, request, num_tokens, num_computed_tokens);
  if (!match && wait_left_ > Duration::zero()) {
    const Time begin = clock_.now();
    transport_.wait(begin + wait_left_);
    wait_left_ -= clock_.now() - begin;
    match = ask(request_id, request, num_tokens, num_computed_tokens);
  }
  if (!match) return std::nullopt;
  return match->num_tokens;
}

std::optional<ExternalMatch> SchedulerRole::ask(const RequestId& request_id, const Tracked& request,
                                                std::uint32_t num_tokens,
                                                std::uint32_t num_computed_tokens) {
  return scheduler_.get_num_new_matched_tokens(request_id, num_tokens, request.hashes,
                                               num_computed_tokens);
}

bool SchedulerRole::update_state_after_alloc(const RequestId& request_id,
                                             std::vector<BlockId> blocks,
                                             std::uint32_t num_computed_tokens,
                                             std::uint32_t num_external_tokens) {
  Tracked& request = requests_[request_id];
  const bool again = !request.blocks.empty();  // behind a load, ours or another connector's
  request.blocks = std::move(blocks);
  const std::size_t full =
      std::min<std::size_t>(num_computed_tokens / block_size_, request.blocks.size());
  if (again) note_foreign(request, std::max(request.known_end, request.load_end), full);
  request.history = births_.oldest(std::span(request.blocks).first(full));
  const std::uint32_t whole = static_cast<std::uint32_t>(full) * block_size_;
  const std::optional<std::uint64_t> load = scheduler_.update_state_after_alloc(
      request_id, request.blocks, request.hashes, whole, num_external_tokens);
  request.known_end = request.load_begin = request.load_end = full;
  request.load = load;
  if (load) {
    ++outstanding_loads_;
    request.load_end += num_external_tokens / block_size_;
    for (std::size_t i = full; i < request.load_end; ++i) births_.set(request.blocks[i], 0);
  }
  return load.has_value() || num_external_tokens == 0;
}

bool SchedulerRole::is_loading(const RequestId& request_id) const {
  const auto request = requests_.find(request_id);
  return request != requests_.end() && request->second.load.has_value();
}

void SchedulerRole::request_finished(const RequestId& request_id) {
  scheduler_.request_finished(request_id);
  requests_.erase(request_id);
}

// --- a step ---

void SchedulerRole::schedule(const RequestId& request_id, std::span<const BlockId> blocks,
                             bool replace, std::uint32_t num_computed_tokens,
                             std::uint32_t num_scheduled_tokens, bool save) {
  Tracked& request = requests_[request_id];
  if (replace) request.blocks.clear();
  request.blocks.insert(request.blocks.end(), blocks.begin(), blocks.end());
  note_computed(request, num_computed_tokens, num_scheduled_tokens);
  scheduled_ = true;
  if (save) progress_.push_back({request_id, num_computed_tokens + num_scheduled_tokens});
}

// Blocks that another connector loaded: of what weights, who knows.
void SchedulerRole::note_foreign(Tracked& request, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    births_.set(request.blocks[i], 0);
    request.history = 0;
  }
}

// Rule BIRTH: a block is as old as the oldest that went into it, its own earlier slots and
// all that it attends to.
void SchedulerRole::note_computed(Tracked& request, std::uint32_t num_computed_tokens,
                                  std::uint32_t num_scheduled_tokens) {
  const std::size_t begin = num_computed_tokens / block_size_;
  const std::size_t end = std::min<std::size_t>(
      (num_computed_tokens + num_scheduled_tokens + block_size_ - 1) / block_size_,
      request.blocks.size());
  // The last of them may be filled in part; a block begun by us is known already.
  const std::size_t filled = (num_computed_tokens + block_size_ - 1) / block_size_;
  note_foreign(request, request.known_end, std::min(filled, end));
  request.known_end = std::max(request.known_end, end);
  for (std::size_t i = begin; i < end; ++i) {
    const BlockId block = request.blocks[i];
    request.history = std::min(request.history, fence_.epoch());
    if (i * block_size_ < num_computed_tokens) {
      request.history = std::min(request.history, births_.birth(block));
    }
    births_.set(block, request.history);
  }
}

StepMessage SchedulerRole::build_connector_meta(bool runs_on) {
  adopt_if_due();
  client_.poll();
  wait_left_ = options_.lookup_wait;
  if (std::exchange(scheduled_, false) || runs_on) fence_.note_scheduled();
  std::vector<RequestProgress> progress;
  for (const Progress& item : progress_) {
    const Tracked& request = requests_.at(item.request_id);
    progress.push_back({item.request_id, item.num_computed_tokens, request.hashes, request.blocks});
  }
  StepMessage step{scheduler_.build_connector_meta(progress), std::exchange(left_scopes_, {}),
                   std::exchange(tainted_scopes_, {}), news_of_scope()};
  progress_.clear();
  ranks_were_asked_ = false;
  return step;
}

SchedulerRole::Output SchedulerRole::update_connector_output(
    std::span<const WorkerReport> reports) {
  ConnectorOutput ended;
  scheduler_.update_connector_output(reports, ended);
  scheduler_.take_events();  // vLLM's events of the external tier are not published
  Output output;
  for (const FinishedLoad& load : ended.loads) {
    --outstanding_loads_;
    const auto request = requests_.find(load.request_id);
    // Else of an earlier request of that id.
    if (request == requests_.end() || request->second.load != load.load_id) continue;
    request->second.load.reset();
    if (load.cancelled) {
      output.cancelled.push_back(load.request_id);
    } else {
      note_loaded(request->second, load);
    }
  }
  note_emptied(reports);
  output.must_fence = ended.must_fence;
  if (ended.must_fence) {
    seal();
    unseal();
  }
  return output;
}

// The loaded blocks stand behind the local prefix, and are no younger than it.
void SchedulerRole::note_loaded(Tracked& request, const FinishedLoad& load) {
  const std::size_t good_end =
      request.load_end - std::min(request.load_end - request.load_begin, load.failed_blocks.size());
  for (std::size_t i = request.load_begin; i < good_end; ++i) {
    births_.set(request.blocks[i], std::min(request.history, load.epoch));
  }
}

// --- fences ---

SchedulerRole::Reset SchedulerRole::reset(bool keep_verified, Time deadline) {
  const ScopeOutcome scope = fence_explicitly(keep_verified);
  return {scope, connector_.reset_cache(deadline).value()};
}

ScopeOutcome SchedulerRole::fence_only() { return fence_explicitly(false); }

// A reset may be all that tells of new weights, so the digest of the scope is taken anew.
ScopeOutcome SchedulerRole::fence_explicitly(bool keep_verified) {
  const std::optional<Scope> before = fence_.scope();
  const std::vector<std::uint64_t> writes = fence_.bound_writes();
  const Fence::ResetResult fenced = fence_.reset(keep_verified);
  after_fence(fenced.left);
  if (options_.identity != IdentityMode::kDigest) return fenced.outcome;
  if (before && std::holds_alternative<DigestIdentity>(before->weights)) {
    fence_.seal();  // what it leaves is not in use yet
    scheduler_.on_fence();
    forget_weights();
    unseal();
    if (fenced.left) doubt_ = {*before, writes};
  } else if (fence_.sealed()) {
    known_weights_.forget();
  }
  return fenced.outcome;
}

void SchedulerRole::seal() {
  after_fence(fence_.seal());
  forget_weights();
}

void SchedulerRole::forget_weights() {
  adopt_due_ = false;
  known_weights_.forget();
  seen_writes_.reset();
  doubt_.reset();
}

void SchedulerRole::unseal() { adopt_due_ = true; }

void SchedulerRole::after_fence(const std::optional<Scope>& left) {
  scheduler_.on_fence();
  if (left && left->is_unique()) left_scopes_.push_back(left->id());  // rule PURGE
}

// --- weights ---

Result<std::vector<std::uint64_t>> SchedulerRole::count_writes(Duration timeout) {
  const LookupKeyClient::ResetAnswer reply = client_.ping(clock_.now() + timeout);
  std::vector<std::uint64_t> writes;
  for (const LookupKeyClient::RankAnswer& rank : reply.ranks) {
    if (!rank.ack) return std::unexpected(rank.ack.error());
    writes.push_back(rank.ack->fence.weight_writes);
  }
  return writes;
}

// Sealed or not: the engine's own cache is in use all the same.
bool SchedulerRole::weights_were_written() {
  if (std::exchange(ranks_were_asked_, true)) return false;
  Result<std::vector<std::uint64_t>> writes = count_writes(options_.lookup_timeout);
  writes_are_known_ = writes.has_value();
  if (!writes) {
    // What is cached from here on is of weights that were not counted.
    if (!seen_writes_) seen_writes_.emplace();
    return false;
  }
  const bool is_moved = seen_writes_ && *seen_writes_ != *writes;
  seen_writes_ = std::move(*writes);
  if (!is_moved) return false;
  log(LogLevel::kInfo, kLog, "a rank wrote weights on its own");
  adopt_due_ = adopt_due_ || !fence_.sealed();
  after_fence(fence_.seal());
  return true;
}

bool SchedulerRole::adopt_is_due() const {
  return adopt_due_ && fence_.sealed() && clock_.now() >= adopt_after_;
}

// Rule BIND: the scope opens once every rank has said how often its weights were written.
void SchedulerRole::adopt_if_due() {
  if (!adopt_is_due()) return;
  Result<std::vector<std::uint64_t>> writes = count_writes(options_.adopt_timeout);
  if (!writes) {
    log(LogLevel::kWarning, kLog,
        "no external cache until every rank answers: " + to_string(writes.error()));
    adopt_after_ = clock_.now() + options_.adopt_timeout;
    return;
  }
  ranks_were_asked_ = true;
  if (!seen_writes_) seen_writes_ = *writes;  // else weights_were_written() is to see a difference
  const std::optional<WeightsIdentity> identity = known_weights_.identity_at(*writes);
  const bool starts_cold = settle_doubt(identity, *writes);
  after_fence(identity && !starts_cold && may_name(*identity)
                  ? fence_.adopt(*identity, std::move(*writes))
                  : fence_.adopt_unique(std::move(*writes)));
  adopt_due_ = false;
}

// Whether the weights are those of before a reset, and start cold behind it. Others that nobody
// counted a write of were there before the reset, and what ran then was saved under the name of
// those before: by that name it must not be found, neither by another engine nor by this one once
// it is back at them.
bool SchedulerRole::settle_doubt(const std::optional<WeightsIdentity>& identity,
                                 std::span<const std::uint64_t> writes) {
  const std::optional<Doubt> doubt = std::exchange(doubt_, std::nullopt);
  if (!doubt || !identity || !std::ranges::equal(doubt->writes, writes)) return false;
  if (*identity == doubt->scope.weights) return true;
  const ScopeId scope = doubt->scope.id();
  log(LogLevel::kWarning, kLog,
      "weights were written that no rank saw written: what is stored under the name of those "
      "before is removed, scope " +
          scope.hex());
  tainted_scopes_.push_back(scope);
  taints_.push_back({doubt->scope.weights, scope, writes.size()});
  return false;
}

bool SchedulerRole::may_name(const WeightsIdentity& weights) const {
  return std::ranges::find(taints_, weights, &Taint::weights) == taints_.end();
}

void SchedulerRole::note_emptied(std::span<const WorkerReport> reports) {
  for (const WorkerReport& report : reports) {
    for (const ScopeId& scope : report.emptied_scopes) {
      const auto taint = std::ranges::find(taints_, scope, &Taint::scope);
      if (taint != taints_.end() && --taint->ranks_left == 0) taints_.erase(taint);
    }
  }
}

void SchedulerRole::identify(std::span<const Sha256Digest> rank_digests,
                             std::vector<std::uint64_t> writes) {
  if (options_.identity != IdentityMode::kDigest) return;
  Sha256 all;
  all.update(as_bytes("newmoon weights of all ranks"));
  for (const Sha256Digest& rank : rank_digests) all.update(rank);
  known_weights_.set_digest({all.finish()}, std::move(writes));
}

// vLLM tells it behind the update that it belongs to, when a scope may be open already.
void SchedulerRole::set_weight_version(const std::string& weight_version) {
  ranks_were_asked_ = false;  // if they were, then between steps
  if (!known_weights_.set_label(weight_version)) return;
  Result<std::vector<std::uint64_t>> writes = count_writes(options_.lookup_timeout);
  if (!writes) return;
  known_weights_.bind_label(std::move(*writes));
  if (fence_.sealed() || !known_weights_.label_is_trusted()) return;
  adopt_due_ = true;
  after_fence(fence_.seal());
}

// Of an epoch that the ranks have heard nothing of.
std::optional<StepMessage::OpenScope> SchedulerRole::news_of_scope() {
  if (std::exchange(told_epoch_, fence_.epoch()) == fence_.epoch()) return std::nullopt;
  StepMessage::OpenScope news{fence_.scope_id(), ""};
  if (fence_.scope()) news.description = describe(*fence_.scope());
  return news;
}

}  // namespace newmoon
