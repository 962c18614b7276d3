// Trainers: how new weights come, in the ways of the frameworks that do it, and what
// must hold afterwards.
#include <algorithm>

#include "sim/world.h"

namespace newmoon::sim {
namespace {

using std::chrono::milliseconds;

}  // namespace

void World::trainer(std::size_t number) {
  for (const PlannedEpisode& episode : plan_.episodes) {
    if (episode.replica != number) continue;
    kernel_.sleep_until(episode.at);
    Replica& engine = replica(number);
    kernel_.trace("episode", {number, static_cast<std::uint64_t>(episode.protocol)});
    play(episode, engine);
    if (engine.alive()) resume(engine);
  }
}

void World::play(const PlannedEpisode& episode, Replica& engine) {
  switch (episode.protocol) {
    case Protocol::kPauseAbort:
      engine.pause(PauseMode::kAbort, true);
      return bring_weights(episode, engine);
    case Protocol::kPauseWait:
      engine.pause(PauseMode::kWait, true);
      return bring_weights(episode, engine);
    case Protocol::kPauseKeep:
      engine.pause(PauseMode::kKeep, true);
      return bring_weights(episode, engine);
    case Protocol::kPauseKeepMix:
      engine.pause(PauseMode::kKeep, false);
      return bring_weights(episode, engine);
    case Protocol::kInFlight:
      return bring_weights(episode, engine);
    case Protocol::kSleep1:
      return sleep_and_update(episode, engine, 1);
    case Protocol::kSleep2:
      verdict_.saw(Overlap::kSleepLevel2);
      return sleep_and_update(episode, engine, 2);
    case Protocol::kNoFinish:
      verdict_.saw(Overlap::kUpdateWithoutFinish);
      (void)engine.update(episode.update);
      dwell(episode);
      return repeat_resets(episode, engine);
    case Protocol::kResetOnly:
      return repeat_resets(episode, engine);
    case Protocol::kPauseOnly:
      engine.pause(static_cast<PauseMode>(episode.pause_mode), episode.clear_cache);
      return dwell(episode);
    case Protocol::kPartialFailure:
      return update_and_fail(episode, engine);
    case Protocol::kUnannounced:
      return write_unannounced(episode, engine);
    case Protocol::kUnknownWriter:
      (void)engine.write_unknown(episode.update);
      return repeat_resets(episode, engine);
    case Protocol::kCrash:
      return crash(episode, engine);
    case Protocol::kCount:
      return;
  }
}

void World::bring_weights(const PlannedEpisode& episode, Replica& engine) {
  engine.call_writer([](EngineCore& core) { (void)core.start_weight_update(); });
  dwell(episode);
  (void)engine.update(episode.update);
  dwell(episode);
  finish_update(engine);
  repeat_resets(episode, engine);
}

// The label names the weights truly: what a user of `trust_weight_version` vouches for.
void World::finish_update(Replica& engine) {
  engine.call_writer([&](EngineCore& core) {
    const DigestIdentity digest = digest_of(engine.weights());
    (void)core.finish_weight_update("w-" + to_hex(ByteView(digest.sha256).first(6)));
  });
}

void World::repeat_resets(const PlannedEpisode& episode, Replica& engine) {
  for (int i = 0; i < episode.resets; ++i) {
    engine.reset(episode.reset_running, episode.reset_connector, episode.keep_verified);
    dwell(episode);
  }
}

// verl: pause, sleep, wake, update, resets.
void World::sleep_and_update(const PlannedEpisode& episode, Replica& engine, int level) {
  const auto mode = static_cast<PauseMode>(episode.pause_mode);
  const std::optional<SleepAnswer> asleep = engine.sleep(level, mode);
  dwell(episode);
  // An engine that could not fall asleep in time is only paused.
  if (asleep && asleep->status) engine.wake_up();
  bring_weights(episode, engine);
}

void World::update_and_fail(const PlannedEpisode& episode, Replica& engine) {
  const bool session = episode.finish;
  if (session) engine.call_writer([](EngineCore& core) { (void)core.start_weight_update(); });
  engine.fail_next_update(episode.rank, episode.torn);
  const Status status = engine.update(episode.update);
  if (engine.alive() && status) {
    verdict_.violation("update", "an update that failed on a rank is reported as done");
  }
  dwell(episode);
  if (episode.clear_cache) (void)engine.update(episode.update);
  dwell(episode);
  if (session) return finish_update(engine);
  write_unannounced(episode, engine);  // the engine may be sealed
}

void World::write_unannounced(const PlannedEpisode& episode, Replica& engine) {
  for (std::size_t rank = 0; rank < plan_.ranks; ++rank) {
    engine.write_unannounced(rank, episode.update);
    dwell(episode);
  }
}

// A rank dies; a while later the engine is restarted, while what it had under way on
// the other ranks may still go on.
void World::crash(const PlannedEpisode& episode, Replica& engine) {
  engine.crash(episode.rank);
  kernel_.sleep_for(episode.dwell + milliseconds(1));
  if (episode.clear_cache)
    engine.reset(episode.reset_running, episode.reset_connector, episode.keep_verified);
  engine.stop_engine();
  lose_requests(engine.number());
  start_replica(engine.number());
  kernel_.sleep_for(milliseconds(5));
  engine.stop_ranks();
}

void World::resume(Replica& engine) {
  engine.call([](EngineCore& core) {
    if (core.is_paused()) (void)core.resume_generation();
  });
}

// --- what must hold at the end ---

// Contract W8: weights that come back find their blocks again.
void World::probe(std::size_t number) {
  Replica& engine = replica(number);
  kernel_.sleep_for(milliseconds(100));  // ranks that fell silent are heard again
  PlannedEpisode back;
  back.update = full_weights(0);
  bring_weights(back, engine);
  if (engine.fence().sealed()) {
    return verdict_.violation("W8", "weights that every rank was given have no scope");
  }
  const PlannedRequest* best = &plan_.requests.front();
  std::size_t best_blocks = 0;
  for (const PlannedRequest& planned : plan_.requests) {
    const std::size_t blocks = readable_blocks(engine, planned);
    if (blocks <= best_blocks) continue;
    best = &planned;
    best_blocks = blocks;
  }
  const std::uint64_t evicted = evicted_blocks();
  const Ticket* ticket = ask(number, *best);
  if (ticket == nullptr || evicted != evicted_blocks()) return;
  if (plan_.load_timeout > Duration(0)) return;  // a load that ran out of time brings less
  const int tokens_left = std::max(1, plan_.prefill_tokens_min);
  const std::size_t usable = best->prompt.size() - static_cast<std::size_t>(tokens_left);
  const auto size = static_cast<std::size_t>(plan_.block_size);
  check_probe(*ticket, std::min(best_blocks, usable / size) * size);
}

// Sends a prompt again and waits for the answer; nullptr: there was none.
const World::Ticket* World::ask(std::size_t number, PlannedRequest planned) {
  planned.replica = number;
  planned.id = "probe";
  planned.max_tokens = 3;
  const Ticket* ticket = submit(planned);
  const Time limit = kernel_.now() + std::chrono::seconds(2);
  while (ticket != nullptr && !ticket->finished && kernel_.now() < limit) {
    kernel_.sleep_for(milliseconds(1));
  }
  if (ticket != nullptr && ticket->finished) return ticket;
  verdict_.violation("progress", "a request to an engine at rest does not end");
  return nullptr;
}

// How many leading blocks of a prompt lie whole in the store under the current scope.
std::size_t World::readable_blocks(const Replica& engine, const PlannedRequest& planned) {
  std::vector<BlockHash> hashes;
  ExtraKeys extra;
  extra.cache_salt = planned.cache_salt;
  (void)hasher_.extend(planned.prompt, extra, hashes);
  const std::vector<Shard> shards = engine.shards();
  const auto readable = [&](const BlockHash& hash) {
    return std::ranges::all_of(shards, [&](const Shard& shard) {
      return oracle_.is_readable(store_, {*engine.fence().scope_id(), shard, hash},
                                 engine.layout());
    });
  };
  return static_cast<std::size_t>(std::ranges::find_if_not(hashes, readable) - hashes.begin());
}

void World::check_probe(const Ticket& ticket, std::size_t expected_tokens) {
  if (expected_tokens < std::max<std::size_t>(1, plan_.min_load_tokens)) return;
  const RequestCounters& counters = ticket.end->counters;
  if (counters.local_hit_tokens + counters.external_hit_tokens >= expected_tokens) return;
  verdict_.violation("W8", "the weights came back, " + std::to_string(expected_tokens) +
                               " tokens of a prompt are in the store, and " +
                               std::to_string(counters.external_hit_tokens) + " were found");
}

}  // namespace newmoon::sim
