#include "connector/store_worker.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "base/contain.h"
#include "base/log.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "store_worker";
constexpr std::string_view kTooManyDrains = "too many drains wait for transfers to end";
// Of several jobs that are put together: the call has one deadline for all of them, and large
// blocks gain nothing.
constexpr std::uint64_t kSharedPutBytes = 32 << 20;

std::size_t shared_put_blocks(const BlockMemory& memory) {
  return kSharedPutBytes / std::max<std::uint64_t>(1, memory.block_bytes());
}

// Nothing is wrong but this work: it is dropped, and dropping it is the remedy.
bool is_drop(const Error& error) {
  const ConnectorAction action = traits(error.code).action;
  return action == ConnectorAction::kDrop || action == ConnectorAction::kRefence;
}

}  // namespace

StoreWorker::StoreWorker(Options options, KvStore& store, BlockMemory& memory, const Clock& clock,
                         Executor& send, Executor& receive)
    : options_(std::move(options)),
      checksum_(uses_checksums(options_.checksum, store)),
      store_(store),
      memory_(memory),
      clock_(clock),
      saves_(
          send, options_.send_jobs_max, options_.drains_max,
          [this](std::span<const SaveJob> jobs) { run_saves(jobs); },
          [](const SaveJob& job) { return job.blocks.size(); },
          std::min(options_.batch_blocks_max, shared_put_blocks(memory))),
      loads_(receive, options_.receive_jobs_max, options_.drains_max,
             [this](std::span<const TimedLoad> jobs) { run_load(jobs.front()); }) {}

// --- forward thread ---

void StoreWorker::start_load_kv(const ConnectorMetadata& metadata) {
  hear(metadata);
  for (const LoadJob& job : metadata.loads) {
    note_used(job.scope, job.epoch);
    TimedLoad load = timed(job);
    if (!admit(job.epoch)) {
      report_load(load, 0);
    } else if (const std::optional<TimedLoad> refused = loads_.push(std::move(load))) {
      count(&StoreWorkerStats::dropped_loads);
      report_load(*refused, 0);
    }
  }
}

void StoreWorker::wait_for_save(const ConnectorMetadata& metadata) {
  hear(metadata);
  for (const SaveJob& job : metadata.saves) {
    note_used(job.scope, job.epoch);
    owe_save();
    // A step that was scheduled before a fence and ran after a weight write has just
    // computed these blocks with other weights than its scope says: rules FLOOR, BIND.
    if (!admit(job.epoch)) {
      report_save(job, SaveOutcome::kDropped);
    } else if (const std::optional<SaveJob> refused = saves_.push(job)) {
      count(&StoreWorkerStats::dropped_saves);
      report_save(*refused, SaveOutcome::kDropped);
    }
  }
}

WorkerReport StoreWorker::get_finished() {
  saves_.pump();
  loads_.pump();
  WorkerReport report;
  MutexLock lock(mutex_);
  report.saves.reserve(owed_saves_);
  report.loads.reserve(owed_loads_);
  std::swap(report, report_);
  report.rank = options_.rank;
  report.weight_writes = floor_.weight_writes();
  return report;
}

void StoreWorker::note_weight_write(Epoch sealed_epoch) {
  {
    MutexLock lock(mutex_);
    floor_.note_weight_write(sealed_epoch);
  }
  // What cannot be dropped now is refused when it runs; the other ranks are to be told all the
  // same.
  (void)contain([this] { drop_below_floor(); });
}

void StoreWorker::close() {
  for (const SaveJob& job : saves_.close()) report_save(job, SaveOutcome::kDropped);
  for (const TimedLoad& job : loads_.close()) report_load(job, 0);
}

StoreWorkerStats StoreWorker::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

// --- LookupBackend ---

Result<std::size_t> StoreWorker::lookup(const LookupRequest& request) {
  if (request.scope && request.epoch < status().floor) {
    return fail(Code::kFenced,
                "lookup of epoch " + std::to_string(request.epoch) + " is below this rank's floor");
  }
  return store_.hit_prefix(request.scope.value_or(options_.foreign_scope), options_.all_shards,
                           request.block_hashes);
}

FenceAck StoreWorker::fence(Epoch epoch) {
  {
    MutexLock lock(mutex_);
    if (epoch == 0) {
      floor_.refuse_heard();
    } else {
      floor_.raise(epoch);
    }
  }
  return drop_below_floor();
}

FenceAck StoreWorker::weights_written() {
  note_weight_write(0);
  return status();
}

void StoreWorker::reset(const ResetRequest& request, std::function<void(Result<ResetAck>)> done) {
  // Rule FIRST: the fence before anything that can fail or take time.
  const FenceAck ack = fence(request.epoch);
  log_hop("reset: floor " + std::to_string(ack.floor) + ", dropped " +
          std::to_string(ack.dropped_loads) + " loads and " + std::to_string(ack.dropped_saves) +
          " saves");
  if (request.mode == ResetMode::kFence) return done(ResetAck{ack, 0, 0});
  const bool waits = when_drained([this, ack, remove = request.remove, done] {
    log_hop("drain: all saves and loads have ended");
    done(remove ? contain([&] { return remove_all(ack); }) : ResetAck{ack, 0, 0});
  });
  if (!waits) done(fail(Code::kBusy, std::string(kTooManyDrains)));
}

void StoreWorker::drain(std::function<void(Result<FenceAck>)> done) {
  if (when_drained([this, done] { done(status()); })) return;
  done(fail(Code::kBusy, std::string(kTooManyDrains)));
}

FenceAck StoreWorker::status() {
  MutexLock lock(mutex_);
  return {floor_.floor(), dropped_.loads, dropped_.saves, floor_.weight_writes()};
}

RankStats StoreWorker::rank_stats() {
  const Result<StoreStats> store = store_.stats();
  RankStats stats;
  stats.queued_saves = saves_.size();
  stats.queued_loads = loads_.size();
  stats.store = store.value_or(StoreStats());
  if (!store) stats.store_error = to_string(store.error());
  MutexLock lock(mutex_);
  stats.epoch = floor_.heard();
  stats.floor = floor_.floor();
  stats.weight_writes = floor_.weight_writes();
  stats.transfers = stats_;
  stats.purges = purges_;
  return stats;
}

// --- saves ---

// Whatever happens in it, every job is reported. Blocks of one that is not reported as stored
// may have been: without the one that is missing they are never part of a hit.
void StoreWorker::run_saves(std::span<const SaveJob> jobs) {
  std::vector<SaveOutcome> outcomes;
  const Status ran = contain([&] {
    outcomes.assign(jobs.size(), SaveOutcome::kStored);
    put_blocks(jobs, outcomes);
  });
  if (!ran) std::ranges::replace(outcomes, SaveOutcome::kStored, SaveOutcome::kFailed);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    report_save(jobs[i], i < outcomes.size() ? outcomes[i] : SaveOutcome::kFailed);
  }
  if (!ran) count_failure(ran.error());
}

void StoreWorker::put_blocks(std::span<const SaveJob> jobs, std::vector<SaveOutcome>& outcomes) {
  std::vector<JobBlock> batch;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    // Of what this rank owns of it, if anything, each block is admitted once more below.
    if (!admit(jobs[job].epoch)) outcomes[job] = SaveOutcome::kDropped;
    for (const BlockRef& block : jobs[job].blocks) {
      if (!owns(block.hash)) continue;
      batch.push_back({job, block});
      if (batch.size() < options_.batch_blocks_max) continue;
      put_batch(jobs, batch, outcomes);
      batch.clear();
    }
  }
  put_batch(jobs, batch, outcomes);
}

void StoreWorker::put_batch(std::span<const SaveJob> jobs, std::span<const JobBlock> blocks,
                            std::vector<SaveOutcome>& outcomes) {
  const PutBatch batch = admitted(jobs, blocks, outcomes);
  if (batch.items.empty()) return;
  const std::vector<Status> statuses = store_.put(batch.items);
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const Status put =
        i < statuses.size() ? statuses[i] : fail(Code::kInternal, "store skipped items of a put");
    SaveOutcome& outcome = outcomes[batch.jobs[i]];
    if (put) {
      count(&StoreWorkerStats::saved_blocks);
    } else if (outcome == SaveOutcome::kStored) {
      outcome = outcome_of(put.error());
    }
  }
}

// Those blocks whose jobs may be stored still; marks the jobs of the others as dropped.
StoreWorker::PutBatch StoreWorker::admitted(std::span<const SaveJob> jobs,
                                            std::span<const JobBlock> blocks,
                                            std::vector<SaveOutcome>& outcomes) {
  PutBatch batch;
  batch.payloads.reserve(blocks.size());
  for (const auto& [job, block] : blocks) {
    if (outcomes[job] != SaveOutcome::kStored) continue;
    // Rule FLOOR, at execution. A fence during the put is harmless: the blocks are
    // pinned (rule PIN), so what arrives late is what the key promises.
    if (!admit(jobs[job].epoch)) {
      outcomes[job] = SaveOutcome::kDropped;
      continue;
    }
    const std::vector<Fragment> fragments = memory_.fragments(block.block);
    const auto& payload = batch.payloads.emplace_back(fragments.begin(), fragments.end());
    const Key key = key_of(jobs[job].scope, block.hash);
    ValueHeader header = make_header(key, options_.layout, memory_.block_bytes());
    const auto known = checksum_ ? memory_.checksum(block.block) : std::nullopt;
    if (known) set_checksum(header, *known);
    batch.items.push_back({key, header, payload, checksum_ && !known, options_.sole_writer,
                           memory_.front_room(block.block)});
    batch.jobs.push_back(job);
  }
  return batch;
}

// Counts it, once a job.
SaveOutcome StoreWorker::outcome_of(const Error& error) {
  if (is_drop(error)) {
    count(&StoreWorkerStats::dropped_saves);
    return SaveOutcome::kDropped;
  }
  count_failure(error);
  return SaveOutcome::kFailed;
}

// --- loads ---

void StoreWorker::run_load(const TimedLoad& job) {
  const Result<std::size_t> loaded =
      contain([&]() -> Result<std::size_t> { return get_blocks(job); });
  std::size_t good_blocks = loaded.value_or(0);
  // Rule FLOOR once more, after the bytes came: the request that waited for them may
  // be gone, or run on other weights.
  if (good_blocks > 0 && !admit(job.epoch)) good_blocks = 0;
  count(&StoreWorkerStats::loaded_blocks, good_blocks);
  report_load(job, good_blocks);
  if (!loaded) count_failure(loaded.error());
}

// How many leading blocks of the job are loaded and checked. What follows the first
// bad block is of no use: hits are contiguous.
std::size_t StoreWorker::get_blocks(const TimedLoad& job) {
  const std::span<const BlockRef> blocks(job.blocks);
  for (std::size_t at = 0; at < blocks.size(); at += options_.batch_blocks_max) {
    if (!admit(job.epoch)) return 0;
    if (!in_time(job)) return at;
    const std::size_t size = std::min(options_.batch_blocks_max, blocks.size() - at);
    const std::size_t good_blocks = get_batch(job, blocks.subspan(at, size));
    if (good_blocks < size) return at + good_blocks;
  }
  return blocks.size();
}

std::size_t StoreWorker::get_batch(const LoadJob& job, std::span<const BlockRef> blocks) {
  std::vector<std::vector<Fragment>> payloads;
  payloads.reserve(blocks.size());
  std::vector<GetItem> items;
  items.reserve(blocks.size());
  for (const BlockRef& block : blocks) {
    const auto& payload = payloads.emplace_back(memory_.fragments(block.block));
    items.push_back({key_of(job.scope, block.hash), payload, checksum_});
  }
  const std::vector<Result<GetValue>> values = store_.get(items);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Status checked = i < values.size()
                               ? check_value(items[i].key, values[i])
                               : fail(Code::kInternal, "store skipped items of a get");
    if (checked) continue;
    Error failed = checked.error();
    // What was asked for is as long as every block of the layout: the value is wrong.
    if (failed.code == Code::kBadRequest) failed.code = Code::kCorrupt;
    count_failure(failed);
    // Else it would stay for ever, since the first put of a key wins.
    if (failed.code == Code::kCorrupt) remove_corrupt(items[i].key);
    return i;
  }
  return items.size();
}

// False, counted and told, once the job's time is over.
bool StoreWorker::in_time(const TimedLoad& job) {
  if (options_.load_timeout == Duration(0)) return true;
  if (clock_.now() - job.since < options_.load_timeout) return true;
  const std::uint64_t seen = count(&StoreWorkerStats::dropped_loads);
  warn("a load took longer than " +
           std::to_string(static_cast<std::int64_t>(to_ms(options_.load_timeout))) + " ms",
       seen, "; the rest is computed instead");
  return false;
}

void StoreWorker::remove_corrupt(const Key& key) {
  if (const Status removed = store_.remove(key); !removed) count_failure(removed.error());
}

// Rule SELF: the value says itself whose bytes it holds.
Status StoreWorker::check_value(const Key& key, const Result<GetValue>& value) const {
  if (!value) return std::unexpected(value.error());
  const std::uint64_t checksum = checksum_ ? value->payload_checksum : value->header.checksum;
  return verify_header(value->header, key, options_.layout, memory_.block_bytes(), checksum,
                       checksum_);
}

// --- both ---

bool StoreWorker::owns(const BlockHash& hash) const {
  return std::hash<BlockHash>{}(hash) % options_.stripe_count == options_.stripe_index;
}

Key StoreWorker::key_of(const ScopeId& scope, const BlockHash& hash) const {
  return {scope, options_.shard, hash};
}

void StoreWorker::hear(const ConnectorMetadata& metadata) {
  {
    MutexLock lock(mutex_);
    const Epoch before = floor_.floor();
    floor_.raise(metadata.epoch);
    // Also without a job to refuse: what the engine found in its own cache may be wrong.
    const std::vector<std::uint64_t>& writes = metadata.weight_writes;
    if (options_.rank < writes.size() && !floor_.bind(metadata.epoch, writes[options_.rank])) {
      note_unbound(metadata.epoch);
    }
    if (floor_.floor() == before) return;
  }
  drop_below_floor();
}

bool StoreWorker::admit(Epoch epoch) {
  MutexLock lock(mutex_);
  const EpochFloor::Admission admission = floor_.admit(epoch);
  if (admission == EpochFloor::Admission::kAdmitted) return true;
  ++stats_.refused_jobs;
  if (admission == EpochFloor::Admission::kUnbound) note_unbound(epoch);
  return false;
}

void StoreWorker::note_unbound(Epoch epoch) {
  report_.unbound_epoch = std::max(report_.unbound_epoch.value_or(0), epoch);
}

// Jobs that are running are not dropped: they check the floor themselves when they end.
FenceAck StoreWorker::drop_below_floor() {
  const Epoch floor = status().floor;
  const auto is_below = [floor](const auto& job) { return job.epoch < floor; };
  Dropped dropped{floor, 0, 0};
  for (const SaveJob& job : saves_.take_if(is_below)) {
    admit(job.epoch);  // counted as refused, and BIND broken is noted
    report_save(job, SaveOutcome::kDropped);
    ++dropped.saves;
  }
  for (const TimedLoad& job : loads_.take_if(is_below)) {
    admit(job.epoch);
    report_load(job, 0);
    ++dropped.loads;
  }
  add_dropped(dropped);
  return status();
}

void StoreWorker::add_dropped(const Dropped& dropped) {
  MutexLock lock(mutex_);
  if (dropped.floor > dropped_.floor) dropped_ = {dropped.floor, 0, 0};
  if (dropped.floor < dropped_.floor) return;
  dropped_.loads += dropped.loads;
  dropped_.saves += dropped.saves;
}

StoreWorker::TimedLoad StoreWorker::timed(const LoadJob& job) {
  TimedLoad load{job, clock_.now(), {}};
  load.failed_blocks.reserve(job.blocks.size());
  MutexLock lock(mutex_);
  report_.loads.reserve(report_.loads.size() + owed_loads_ + 1);
  ++owed_loads_;
  return load;
}

void StoreWorker::owe_save() {
  MutexLock lock(mutex_);
  report_.saves.reserve(report_.saves.size() + owed_saves_ + 1);
  ++owed_saves_;
}

void StoreWorker::report_save(const SaveJob& job, SaveOutcome outcome) {
  MutexLock lock(mutex_);
  report_.saves.push_back({job.job_id, outcome});
  --owed_saves_;
}

void StoreWorker::report_load(const TimedLoad& job, std::size_t good_blocks) {
  for (std::size_t i = good_blocks; i < job.blocks.size(); ++i) {
    job.failed_blocks.push_back(job.blocks[i].block);
  }
  MutexLock lock(mutex_);
  report_.loads.push_back({job.load_id, std::move(job.failed_blocks)});
  --owed_loads_;
}

std::uint64_t StoreWorker::count(std::uint64_t StoreWorkerStats::* counter, std::uint64_t amount) {
  MutexLock lock(mutex_);
  return stats_.*counter += amount;
}

void StoreWorker::count_failure(const Error& error) {
  if (error.code == Code::kMiss) {
    count(&StoreWorkerStats::missing_blocks);
    return;
  }
  const bool corrupt = error.code == Code::kCorrupt;
  const std::uint64_t seen =
      count(corrupt ? &StoreWorkerStats::corrupt_blocks : &StoreWorkerStats::store_errors);
  warn(to_string(error), seen, corrupt ? "; the block is computed instead" : "");
}

// Every doubling only: a store that is gone or slow fails every job.
void StoreWorker::warn(const std::string& what, std::uint64_t seen, std::string_view remedy) const {
  if (!std::has_single_bit(seen)) return;
  log(LogLevel::kWarning, kLog,
      "rank " + std::to_string(options_.rank) + ": " + what + " (" + std::to_string(seen) +
          " so far)" + std::string(remedy));
}

// --- drain and remove_all ---

void StoreWorker::log_hop(const std::string& what) const {
  log(LogLevel::kDebug, kLog, "rank " + std::to_string(options_.rank) + ": " + what);
}

// False: too many wait already; `done` is not called.
bool StoreWorker::when_drained(std::function<void()> done) {
  auto queues_left = std::make_shared<std::atomic<int>>(2);
  const auto reached = [queues_left, done = std::move(done)] {
    if (queues_left->fetch_sub(1) == 1) done();
  };
  return saves_.mark(reached) && loads_.mark(reached);
}

Result<ResetAck> StoreWorker::remove_all(FenceAck fence) {
  log_hop("remove_all()");
  const Result<std::uint64_t> removed = store_.remove_all();
  if (!removed) return std::unexpected(removed.error());
  const Result<StoreStats> stats = store_.stats();
  if (!stats) return std::unexpected(stats.error());
  if (stats->blocks != 0) {
    return fail(Code::kUnavailable, "remove_all left " + std::to_string(stats->blocks) +
                                        " blocks in the store; is somebody else writing to it?");
  }
  return ResetAck{fence, *removed, 0};
}

}  // namespace newmoon
