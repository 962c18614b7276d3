#include "sim/replica.h"

#include <algorithm>
#include <utility>

#include "sim/replica_parts.h"

namespace newmoon::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::string_view kModel = "toy";

ModelInfo make_info(const Plan& plan) {
  return {.name = std::string(kModel),
          .layout = "toy ranks=" + std::to_string(plan.ranks) +
                    " block=" + std::to_string(plan.block_size),
          .vocab_size = plan.vocab_size,
          .context_tokens_max = plan.context_tokens_max,
          .layer_count = static_cast<int>(plan.ranks),
          .block_size = plan.block_size,
          .sequences_max = plan.slots,
          .step_tokens_max = plan.step_tokens_max,
          .prefill_tokens_min = plan.prefill_tokens_min};
}

Shard shard_of(std::size_t rank) { return {.tp = static_cast<std::uint16_t>(rank)}; }

std::vector<Shard> all_shards(std::size_t ranks) {
  std::vector<Shard> shards;
  for (std::size_t r = 0; r < ranks; ++r) shards.push_back(shard_of(r));
  return shards;
}

RankOptions rank_options(const Plan& plan, std::size_t rank) {
  return {.rank = rank,
          .block_size = plan.block_size,
          .slots = plan.slots,
          .paged = plan.paged,
          .writes_overtake = plan.writes_overtake,
          .step_max = plan.step_max,
          .stall_percent = plan.stall_percent};
}

StoreWorker::Options worker_options(const Plan& plan, const ModelInfo& info, std::size_t rank) {
  StoreWorker::Options options;
  options.rank = rank;
  options.shard = shard_of(rank);
  options.all_shards = all_shards(plan.ranks);
  options.layout = layout_id(info.layout);
  options.send_jobs_max = plan.jobs_max;
  options.receive_jobs_max = plan.jobs_max;
  options.batch_blocks_max = plan.batch_blocks_max;
  options.load_timeout = plan.load_timeout;
  options.checksum = plan.checksum;
  return options;
}

LookupKeyServer::Options server_options(const Plan& plan) {
  LookupKeyServer::Options options;
  options.block_size = plan.block_size;
  options.quick_lookup_blocks_max = 3;
  return options;
}

}  // namespace

Replica::RankParts::RankParts(Surroundings world, std::size_t replica, const ModelInfo& info,
                              std::size_t number, std::function<Epoch()> epoch)
    : memory(number, static_cast<int>(world.plan.block_count), world.plan.block_size,
             world.verdict),
      store(world.store, replica, process, &memory, std::move(epoch)),
      send(world.kernel, microseconds(30)),
      receive(world.kernel, microseconds(30)),
      quick(world.kernel, microseconds(30)),
      bulk(world.kernel, microseconds(30)),
      worker(worker_options(world.plan, info, number), store, memory, world.clock, send, receive),
      server(worker, server_options(world.plan), quick, bulk),
      rank(world.kernel, rank_options(world.plan, number), process, memory, world.verdict) {
  rank.attach(worker);
}

Replica::Replica(Surroundings world, std::size_t number)
    : world_(world),
      number_(number),
      info_(make_info(world.plan)),
      incarnation_(draw_incarnation(world.kernel.random())),
      transport_(world.kernel, world.network, engine_),
      fence_({.name_space = "run-" + std::to_string(world.plan.seed),
              .model = info_.name,
              .layout = info_.layout,
              .incarnation = incarnation_}),
      pool_({.block_count = world.plan.block_count,
             .block_size = world.plan.block_size,
             .enable_prefix_caching = true,
             .enable_kv_events = world.plan.kv_events},
            fence_.epoch()),
      purge_store_(world.store, number, engine_, nullptr, [this] { return fence_.epoch(); }),
      purge_queue_(world.kernel, milliseconds(5)) {
  for (std::size_t r = 0; r < world.plan.ranks; ++r) make_rank(r);
  make_engine();
  watch_engine();
  history_.emplace_back(kernel().now(), weights());
}

Replica::~Replica() {
  for (const auto& rank : ranks_) rank->worker.close();
}

void Replica::make_rank(std::size_t number) {
  ranks_.push_back(std::make_unique<RankParts>(world_, number_, info_, number,
                                               [this] { return fence_.epoch(); }));
  RankParts& rank = *ranks_.back();
  rank.rank.initial_weights(full_weights(0));
  transport_.connect(
      [&rank](Frames frames, ReplyFn reply) { rank.server.handle(frames, std::move(reply)); },
      rank.process);
  watch_rank(rank);
}

void Replica::make_engine() {
  const Plan& plan = world_.plan;
  client_ = std::make_unique<LookupKeyClient>(
      transport_, world_.clock,
      LookupKeyClient::Options{.lookup_timeout = plan.lookup_timeout,
                               .probe_interval = milliseconds(20),
                               .foreign = std::nullopt});
  const ResetMode mode = plan.remove_all ? ResetMode::kRemoveAll : ResetMode::kFence;
  scheduler_ = std::make_unique<StoreScheduler>(
      StoreScheduler::Options{.block_size = plan.block_size,
                              .reset_mode = mode,
                              .min_load_tokens = plan.min_load_tokens},
      fence_, *client_, pool_);
  connector_ = std::make_unique<StoreConnector>(StoreConnector::for_scheduler(*scheduler_));
  std::vector<SimRank*> ranks;
  for (const auto& rank : ranks_) ranks.push_back(&rank->rank);
  executor_ = std::make_unique<SimModelExecutor>(
      kernel(),
      SimModelExecutor::Options{.steps_in_flight_max = plan.steps_in_flight_max,
                                .vocab_size = plan.vocab_size,
                                .write_gap_max = plan.write_gap_max},
      std::move(ranks), verdict());
  const auto purge = [this](const Scope& scope) {
    note_purge(scope);
    purge_queue_.post([this, id = scope.id()] { (void)purge_store_.purge_scope(id, true); });
  };
  core_ = std::make_unique<EngineCore>(
      EngineCore::Options{.scheduler = {.reset_mode = mode},
                          .identity = plan.identity,
                          .name_space = "run-" + std::to_string(plan.seed)},
      EngineCore::Parts{.scheduler = {.info = info_,
                                      .hasher = world_.hasher,
                                      .fence = fence_,
                                      .pool = pool_,
                                      .connector = connector_.get(),
                                      .clock = world_.clock,
                                      .purge = purge},
                        .executor = *executor_});
}

// --- the loop ---

void Replica::start() {
  kernel().spawn([this] { loop(); });
}

void Replica::loop() {
  if (const Status started = core_->start(); !started) {
    verdict().violation("start", to_string(started.error()));
  }
  while (engine_.alive) {
    run_commands();
    epoch_before_call_ = fence_.epoch();
    const std::vector<RequestOutput> outputs = core_->step();
    after_event();
    note_events();
    for (const RequestOutput& output : outputs) on_output(output);
    if (engine_.alive && commands_.empty()) idle();
  }
  for (const auto& command : std::exchange(commands_, {})) command->ended = true;
  kernel().wake_all(answered_);
}

void Replica::run_commands() {
  while (engine_.alive && !commands_.empty()) {
    const std::shared_ptr<Command> command = std::move(commands_.front());
    commands_.pop_front();
    epoch_before_call_ = fence_.epoch();
    command->run(*core_);
    after_event();
    note_events();
    command->ended = true;
    kernel().wake_all(answered_);
  }
}

void Replica::idle() {
  client_->poll();
  const Time later = kernel().now() + milliseconds(10);  // ranks that fell silent are probed
  const Time deadline = std::min(later, core_->next_deadline().value_or(kNever));
  if (!core_->has_work()) {
    kernel().wait(wakeup_, deadline);
    return;
  }
  const Duration poll = draw_duration(kernel().random(), microseconds(100), milliseconds(1));
  const Time until = std::min(deadline, kernel().now() + poll);
  if (executor_->steps_in_flight() > 0) {
    executor_->wait(until);
  } else {
    kernel().wait(wakeup_, until);
  }
}

// --- for drivers ---

bool Replica::call(const std::function<void(EngineCore&)>& command) {
  if (!engine_.alive) return false;
  bool ran = false;
  const auto queued = std::make_shared<Command>();
  queued->run = [&](EngineCore& core) {
    command(core);
    ran = true;
  };
  commands_.push_back(queued);
  kernel().wake_all(wakeup_);
  while (!queued->ended) kernel().wait(answered_, kNever);
  return ran;
}

bool Replica::call_writer(const std::function<void(EngineCore&)>& command) {
  return call([&](EngineCore& core) {
    writes_weights_ = true;
    command(core);
    writes_weights_ = false;
  });
}

std::optional<PauseAnswer> Replica::pause(PauseMode mode, bool clear_cache) {
  const auto answer = std::make_shared<std::optional<PauseAnswer>>();
  if (mode == PauseMode::kKeep && has_loads()) verdict().saw(Overlap::kKeepWithLoad);
  const Time deadline = kernel().now() + world_.plan.deadline;
  call([&](EngineCore& core) {
    keeps_requests_ = mode == PauseMode::kKeep && !clear_cache;
    const Epoch before = fence_.epoch();
    core.pause_generation(mode, clear_cache, deadline, [=, this](PauseAnswer said) {
      check_in_time("a pause", deadline);
      check_pause(said, before);
      if (said.reset) {
        check_acks(*said.reset);
        check_emptied(*said.reset);
      }
      if (said.complete && mode != PauseMode::kKeep && core_->scheduler().num_running() > 0) {
        verdict().violation("W5", "a pause says that it is complete, and a request runs");
      }
      *answer = std::move(said);
      kernel().wake_all(answered_);
    });
  });
  while (!*answer && engine_.alive) kernel().wait(answered_, kNever);
  return *answer;
}

std::optional<SleepAnswer> Replica::sleep(int level, PauseMode mode) {
  const auto answer = std::make_shared<std::optional<SleepAnswer>>();
  const Time deadline = kernel().now() + world_.plan.deadline;
  call([&](EngineCore& core) {
    keeps_requests_ = false;
    const Epoch before = fence_.epoch();
    core.sleep(level, mode, deadline, [=, this](SleepAnswer said) {
      // Giving memory back takes the ranks' time, once everything has ended in time.
      if (!said.status) check_in_time("a sleep", deadline);
      check_pause(said.pause, before);
      *answer = std::move(said);
      kernel().wake_all(answered_);
    });
  });
  while (!*answer && engine_.alive) kernel().wait(answered_, kNever);
  return *answer;
}

std::optional<CacheResetAnswer> Replica::reset(bool reset_running, bool reset_connector,
                                               bool keep_verified) {
  std::optional<CacheResetAnswer> answer;
  call([&](EngineCore& core) {
    const Time deadline = kernel().now() + world_.plan.deadline;
    const Epoch before = fence_.epoch();
    const std::optional<ScopeId> scope = fence_.scope_id();
    const bool must_keep = scope && !fence_.scope()->is_unique() &&
                           (!scheduled_since_adopt_ || !reset_connector || keep_verified);
    const std::uint64_t sent = transport_.sent_count();
    answer = core.reset_prefix_cache(reset_running, reset_connector, deadline, keep_verified);
    check_in_time("a reset", deadline);
    // One fence and one reset to each rank; draining and removing in remove_all.
    if (transport_.sent_count() - sent > 6 * ranks_.size() + 6) {
      verdict().violation("W3", "a reset sent more messages than there are ranks to tell");
    }
    check_reset(*answer, before);
    if (reset_connector) {
      check_acks(*answer);
      check_emptied(*answer);
    }
    check_outcome(*answer, scope);
    if (must_keep && answer->scope != ScopeOutcome::kKept) {
      verdict().violation("W8", "a reset gave up a verified scope that nobody had used");
    }
    if (++resets_in_a_row_ >= 3) verdict().saw(Overlap::kResetThreeTimes);
  });
  return answer;
}

std::optional<bool> Replica::wake_up() {
  std::optional<bool> awake;
  call([&](EngineCore& core) {
    const Result<bool> woken = core.wake_up({});
    if (woken) awake = *woken;
  });
  return awake;
}

Status Replica::update(const WeightUpdate& update) {
  Status status = fail(Code::kUnavailable, "the engine is dead");
  call_writer([&](EngineCore& core) {
    ++update_count_;
    status = core.update_weights(update);
  });
  return status;
}

Status Replica::write_unknown(const WeightUpdate& update) {
  Status status = fail(Code::kUnavailable, "the engine is dead");
  call_writer([&](EngineCore& core) {
    ++update_count_;
    status = core.run_unknown_writer([&]() -> Status {
      const auto written = executor_->update_weights(update, false, fence_.epoch());
      if (!written) return std::unexpected(written.error());
      return {};
    });
  });
  return status;
}

// --- faults ---

void Replica::crash(std::size_t rank) {
  crashed_ = true;
  verdict().saw(Overlap::kRankCrash);
  kernel().trace("crash", {number_, rank});
  ranks_[rank]->process.alive = false;
  executor_->rank_died(rank);
  call([rank](EngineCore& core) { core.rank_died(rank); });
}

void Replica::stop_engine() {
  engine_.alive = false;
  kernel().wake_all(wakeup_);
  kernel().wake_all(answered_);
}

void Replica::stop_ranks() {
  for (const auto& rank : ranks_) rank->process.alive = false;
}

void Replica::write_unannounced(std::size_t rank, const WeightUpdate& update) {
  ++update_count_;
  ranks_[rank]->rank.call(
      [this, rank, update] {
        ranks_[rank]->rank.write_weights(std::nullopt,
                                         [&](RankWeights& weights) { weights.apply(update); });
      },
      world_.plan.writes_overtake);
}

void Replica::fail_next_update(std::size_t rank, bool torn) {
  executor_->fail_next_update({rank}, torn);
}

}  // namespace newmoon::sim
