#include "connector/store_scheduler.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/log.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "store_scheduler";

std::string describe(const LookupKeyClient::RankAnswer& answer) {
  return "rank " + std::to_string(answer.rank) + ": " + to_string(answer.ack.error());
}

}  // namespace

StoreScheduler::StoreScheduler(Options options, const Fence& fence, LookupKeyClient& client,
                               BlockPins& pins, ScopeHold* hold)
    : options_(options), fence_(fence), client_(client), pins_(pins), hold_(hold) {}

// --- lookup ---

std::optional<ExternalMatch> StoreScheduler::get_num_new_matched_tokens(
    const RequestId& request_id, std::uint32_t num_tokens, std::span<const BlockHash> block_hashes,
    std::uint32_t num_computed_tokens) {
  if (!is_open() || has_outstanding_load(request_id)) return ExternalMatch{};
  const auto state = requests_.find(request_id);
  if (state != requests_.end() && state->second.load_failed) return ExternalMatch{};

  const auto gain = [&](std::uint32_t hit) {
    hit = usable_hit(hit, num_tokens, block_hashes.size());
    if (hit <= num_computed_tokens || num_computed_tokens % block_tokens() != 0) return 0u;
    const std::uint32_t tokens = hit - num_computed_tokens;
    return tokens < options_.min_load_tokens ? 0u : tokens;
  };
  if (gain(num_tokens) == 0) return ExternalMatch{};  // whatever the store has

  const LookupRequest& request = lookup_request(request_id, num_tokens, block_hashes);
  const std::optional<Result<std::uint32_t>> hit = client_.lookup(request_id, request);
  if (!hit) return std::nullopt;
  return ExternalMatch{*hit ? gain(**hit) : 0};
}

// A hit in whole blocks within the request. The last token is left to be computed: its
// logits are wanted. Servers cut too; a peer's answer is not trusted (contract W7).
std::uint32_t StoreScheduler::usable_hit(std::uint32_t hit, std::uint32_t num_tokens,
                                         std::size_t num_hashes) const {
  if (num_tokens == 0) return 0;
  const std::size_t blocks =
      std::min<std::size_t>({hit / block_tokens(), (num_tokens - 1) / block_tokens(), num_hashes});
  return static_cast<std::uint32_t>(blocks) * block_tokens();
}

// Kept until the request is finished, so that polling does not copy the hashes.
const LookupRequest& StoreScheduler::lookup_request(const RequestId& request_id,
                                                    std::uint32_t num_tokens,
                                                    std::span<const BlockHash> block_hashes) {
  const auto [entry, is_new] = lookups_.try_emplace(request_id);
  LookupRequest& request = entry->second;
  if (is_new) {
    // Rule EXPLICIT: the rank is told the scope.
    request.scope = fence_.scope_id();
    request.epoch = fence_.epoch();
    request.num_tokens = num_tokens;
    request.block_hashes.assign(block_hashes.begin(), block_hashes.end());
  }
  return request;
}

std::optional<std::uint64_t> StoreScheduler::update_state_after_alloc(
    const RequestId& request_id, std::span<const BlockId> blocks,
    std::span<const BlockHash> block_hashes, std::uint32_t num_computed_tokens,
    std::uint32_t num_external_tokens) {
  const std::size_t begin = num_computed_tokens / block_tokens();
  const std::size_t end = begin + num_external_tokens / block_tokens();
  requests_[request_id].saved_blocks = begin;
  if (num_external_tokens == 0 || !is_open() || has_outstanding_load(request_id) ||
      end > std::min(blocks.size(), block_hashes.size())) {
    return std::nullopt;
  }
  requests_[request_id].saved_blocks = end;

  LoadJob job{++last_load_id_, request_id, fence_.epoch(), *fence_.scope_id(), {}};
  for (std::size_t i = begin; i < end; ++i) job.blocks.push_back({block_hashes[i], blocks[i]});
  const std::size_t size = job.blocks.size();
  loads_.emplace(last_load_id_, Load{std::move(job), size, false, start()});
  load_of_request_[request_id] = last_load_id_;
  pending_loads_.push_back(last_load_id_);
  return last_load_id_;
}

// --- each step ---

void StoreScheduler::housekeep() {
  client_.poll();
  keep_scopes();
}

void StoreScheduler::keep_scopes() {
  if (hold_ != nullptr) hold_->keep(fence_, [this] { return scopes_of_jobs(); });
}

std::set<ScopeId> StoreScheduler::scopes_of_jobs() const {
  std::set<ScopeId> scopes;
  for (const auto& [id, load] : loads_) scopes.insert(load.job.scope);
  for (const auto& [id, save] : saves_) scopes.insert(save.job.scope);
  return scopes;
}

ConnectorMetadata StoreScheduler::build_connector_meta(std::span<const RequestProgress> progress) {
  keep_scopes();
  ConnectorMetadata metadata;
  metadata.epoch = fence_.epoch();
  metadata.weight_writes = fence_.bound_writes();
  for (const std::uint64_t load_id : std::exchange(pending_loads_, {})) {
    metadata.loads.push_back(loads_.at(load_id).job);
  }
  if (!is_open() || !options_.save) return metadata;
  for (const RequestProgress& request : progress) {
    if (std::optional<SaveJob> job = next_save(request)) metadata.saves.push_back(std::move(*job));
  }
  return metadata;
}

std::optional<SaveJob> StoreScheduler::next_save(const RequestProgress& progress) {
  const std::size_t full_blocks =
      std::min<std::size_t>({progress.num_computed_tokens / block_tokens(), progress.blocks.size(),
                             progress.block_hashes.size()});
  std::size_t& saved_blocks = requests_[progress.request_id].saved_blocks;
  SaveJob job{0, progress.request_id, fence_.epoch(), *fence_.scope_id(), {}};
  for (; saved_blocks < full_blocks; ++saved_blocks) {
    const BlockId block = progress.blocks[saved_blocks];
    // Rule BIRTH: what other weights computed, in part or in its history, or what
    // nobody vouches for, is never published.
    if (block == kNullBlock || pins_.birth(block) != fence_.epoch()) continue;
    job.blocks.push_back({progress.block_hashes[saved_blocks], block});
  }
  if (job.blocks.empty()) return std::nullopt;
  job.job_id = ++last_job_id_;
  // Rule PIN: until every rank has reported.
  for (const BlockRef& block : job.blocks) pins_.pin(block.block);
  saves_.emplace(job.job_id, Save{job, true, start()});
  return job;
}

void StoreScheduler::update_connector_output(std::span<const WorkerReport> reports,
                                             ConnectorOutput& output) {
  for (const WorkerReport& report : reports) {
    for (const LoadReport& load : report.loads) note_load(report.rank, load);
    for (const SaveReport& save : report.saves) note_save(report.rank, save);
    // Rule BIND. An older epoch needs nothing: it was left by a fence already, and no
    // job, block or scope of it is in use any more.
    if (report.unbound_epoch == fence_.epoch()) {
      output.must_fence = true;
      log(LogLevel::kWarning, kLog,
          "rank " + std::to_string(report.rank) + " met weights other than those of epoch " +
              std::to_string(fence_.epoch()) + "; a fence is needed");
    }
  }
  std::ranges::move(finished_loads_, std::back_inserter(output.loads));
  finished_loads_.clear();
}

void StoreScheduler::note_load(std::size_t rank, const LoadReport& report) {
  const auto entry = loads_.find(report.load_id);
  // Rule ONE-LOAD (GEN in the model): a load is known by its id, so that a report of an
  // earlier load of the same request, or a repeated one, counts for nothing.
  if (entry == loads_.end() || !note_report(entry->second.progress, rank)) {
    ++ignored_reports_;
    return;
  }
  Load& load = entry->second;
  const std::unordered_set<BlockId> failed(report.failed_blocks.begin(),
                                           report.failed_blocks.end());
  const auto first = std::ranges::find_if(
      load.job.blocks, [&](const BlockRef& block) { return failed.contains(block.block); });
  load.good_blocks =
      std::min(load.good_blocks, static_cast<std::size_t>(first - load.job.blocks.begin()));
  if (load.progress.missing == 0) finish_load(report.load_id);
}

void StoreScheduler::note_save(std::size_t rank, const SaveReport& report) {
  const auto entry = saves_.find(report.job_id);
  if (entry == saves_.end() || !note_report(entry->second.progress, rank)) {
    ++ignored_reports_;
    return;
  }
  entry->second.stored &= report.outcome == SaveOutcome::kStored;
  if (entry->second.progress.missing == 0) finish_save(report.job_id);
}

StoreScheduler::Progress StoreScheduler::start() const {
  return {std::vector<bool>(client_.rank_count(), false), client_.rank_count()};
}

bool StoreScheduler::note_report(Progress& progress, std::size_t rank) {
  if (rank >= progress.reported.size() || progress.reported[rank]) return false;
  progress.reported[rank] = true;
  --progress.missing;
  return true;
}

void StoreScheduler::finish_load(std::uint64_t load_id) {
  const auto found = loads_.find(load_id);
  const Load& load = found->second;
  const RequestId& request_id = load.job.request_id;
  FinishedLoad finished{request_id, load_id, load.cancelled, {}, load.job.epoch};
  // Rule ONE-LOAD: a cancelled load fails all its blocks.
  const std::size_t good_blocks = load.cancelled ? 0 : load.good_blocks;
  for (std::size_t i = good_blocks; i < load.job.blocks.size(); ++i) {
    finished.failed_blocks.push_back(load.job.blocks[i].block);
  }
  const std::size_t failed_blocks = finished.failed_blocks.size();
  const bool has_failed = !load.cancelled && failed_blocks > 0;
  RequestState* const request = has_failed ? &requests_[request_id] : nullptr;
  finished_loads_.push_back(std::move(finished));
  // Nothing throws from here on: it has ended and will be told, or is under way still.
  if (has_failed) {
    // They will be computed, and are then to be saved. Asking the store again would be
    // promised the same bytes and fail again.
    request->load_failed = true;
    request->saved_blocks -= std::min(request->saved_blocks, failed_blocks);
  }
  load_of_request_.erase(request_id);
  loads_.erase(found);
}

void StoreScheduler::finish_save(std::uint64_t job_id) {
  const Save save = std::move(saves_.extract(job_id).mapped());
  for (const BlockRef& block : save.job.blocks) pins_.unpin(block.block);
  if (!save.stored || save.job.epoch != fence_.epoch()) return;
  for (const BlockRef& block : save.job.blocks) events_.push_back({save.job.epoch, block.hash});
  while (events_.size() > options_.events_max) events_.pop_front();
}

// --- ends and fences ---

void StoreScheduler::request_finished(const RequestId& request_id) {
  blocks_dropped(request_id);
  requests_.erase(request_id);
  const auto outstanding = load_of_request_.find(request_id);
  if (outstanding == load_of_request_.end()) return;
  const std::uint64_t load_id = outstanding->second;
  loads_.at(load_id).cancelled = true;
  const auto pending = std::ranges::find(pending_loads_, load_id);
  if (pending == pending_loads_.end()) return;
  finish_load(load_id);  // no rank has it; should that throw, they will be given it, for nobody
  pending_loads_.erase(pending);
}

void StoreScheduler::blocks_dropped(const RequestId& request_id) {
  client_.discard(request_id);
  lookups_.erase(request_id);
  const auto request = requests_.find(request_id);
  if (request != requests_.end()) request->second.saved_blocks = 0;
}

bool StoreScheduler::has_outstanding_load(const RequestId& request_id) const {
  return load_of_request_.contains(request_id);
}

bool StoreScheduler::has_pending_push_work() const {
  return !saves_.empty() || !loads_.empty() || !finished_loads_.empty();
}

void StoreScheduler::on_fence() {
  forget();
  // What is not told for want of memory is lost as a message may be: the next ones tell it.
  const Status told = contain([this] {
    log(LogLevel::kDebug, kLog, "on_fence: epoch " + std::to_string(fence_.epoch()));
    client_.fence(fence_.epoch());
    keep_scopes();
  });
  if (!told) thrown_.add(told.error());
}

void StoreScheduler::forget() {
  client_.discard_all();
  lookups_.clear();
  requests_.clear();
  events_.clear();
  // Rule STEP: a load that a rank has may still write into its blocks. It goes on, for
  // nobody, and is reported when every rank has ended it. Likewise rule PIN: saves_
  // and their pins stay, although the ranks will drop the jobs.
  for (auto& [load_id, load] : loads_) load.cancelled = true;
  while (!pending_loads_.empty()) {
    finish_load(pending_loads_.front());
    pending_loads_.erase(pending_loads_.begin());
  }
}

void StoreScheduler::rank_died(std::size_t rank) {
  if (rank >= client_.rank_count() || !dead_ranks_.insert(rank).second) return;
  std::vector<std::uint64_t> ended;
  for (auto& [load_id, load] : loads_) {
    if (!note_report(load.progress, rank)) continue;
    load.good_blocks = 0;
    if (load.progress.missing == 0) ended.push_back(load_id);
  }
  for (const std::uint64_t load_id : ended) {
    std::erase(pending_loads_, load_id);
    finish_load(load_id);
  }
  ended.clear();
  for (auto& [job_id, save] : saves_) {
    if (!note_report(save.progress, rank)) continue;
    save.stored = false;
    if (save.progress.missing == 0) ended.push_back(job_id);
  }
  for (const std::uint64_t job_id : ended) finish_save(job_id);
}

// --- reset ---

ResetAnswer StoreScheduler::reset_store(Time deadline) {
  const ResetRequest request{fence_.epoch(), options_.reset_mode, false};
  const std::string what = "reset_store(" + std::string(to_string(options_.reset_mode)) +
                           ", epoch " + std::to_string(request.epoch) + ")";
  log(LogLevel::kDebug, kLog, what);
  const ResetAnswer answer = summarise(client_.reset(request, deadline));
  if (!answer.success) {
    log(LogLevel::kWarning, kLog, what + " failed: " + answer.error);
  } else if (answer.degraded) {
    log(LogLevel::kWarning, kLog, what + " is degraded: " + answer.error);
  } else {
    log(LogLevel::kInfo, kLog, what + " succeeded, removed " + std::to_string(answer.removed));
  }
  return answer;
}

ResetAnswer StoreScheduler::summarise(const LookupKeyClient::ResetAnswer& reply) const {
  ResetAnswer answer;
  answer.fenced = reply.fenced;
  answer.silent_ranks = reply.silent_ranks();
  for (const LookupKeyClient::RankAnswer& rank : reply.ranks) {
    if (!rank.ack) {
      answer.degraded = true;
      answer.error += (answer.error.empty() ? "" : "; ") + describe(rank);
      continue;
    }
    answer.dropped_loads += rank.ack->fence.dropped_loads;
    answer.dropped_saves += rank.ack->fence.dropped_saves;
    answer.removed += rank.ack->removed;
  }
  // Contract W5. Under the fence nothing stale can be read, whoever answered (rule
  // FIRST). Where bytes were to be gone, or the servers know no fence, all must have
  // answered well.
  const bool fence_suffices = options_.reset_mode == ResetMode::kFence && reply.fenced;
  answer.success = fence_suffices || !answer.degraded;
  return answer;
}

std::vector<StoredEvent> StoreScheduler::take_events() {
  const std::deque<StoredEvent> events = std::exchange(events_, {});
  return {events.begin(), events.end()};
}

}  // namespace newmoon
