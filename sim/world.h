// World: one seed's run: replicas on one store, users who send requests, trainers who
// bring new weights, faults, and at the end a quiet time in which everything must
// come to rest and what is right must still be found.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/oracle.h"
#include "sim/plan.h"
#include "sim/replica.h"
#include "sim/runner.h"
#include "store/faulty_store.h"
#include "store/memory_store.h"

namespace newmoon::sim {

class World {
 public:
  World(Plan plan, FiberPool& fibers, TraceSink trace);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Once.
  SeedResult run();

 private:
  // A request as its user sees it.
  struct Ticket {
    PlannedRequest planned;
    std::size_t replica = 0;
    ExtraKeys extra;
    std::vector<Token> tokens;  // prompt and answer so far
    Time last{0};               // when the newest token came, or the request was added
    bool mixed = false;         // it goes on across weights: its tokens are nobody's
    bool finished = false;
    std::optional<RequestOutput> end;
  };

  Replica& replica(std::size_t number) { return *lives_[number].back(); }
  void start_replica(std::size_t number);
  void seed_foreign_values();
  void check_foreign_values();

  // world.cc
  void run_plan();
  void user(const PlannedRequest& planned);
  Ticket* submit(const PlannedRequest& planned);
  void take_output(std::size_t number, const RequestOutput& output);
  void check_token(Ticket& ticket, const Replica& engine, Token token);
  void note_end(Ticket& ticket, const RequestOutput& output);
  void note_write(std::size_t number, bool announced);
  void lose_requests(std::size_t number);
  void inspector();
  void stop_faults();
  void come_to_rest();
  bool at_rest() const;
  SeedResult result() const;

  // world_trainer.cc
  void trainer(std::size_t number);
  void play(const PlannedEpisode& episode, Replica& engine);
  void bring_weights(const PlannedEpisode& episode, Replica& engine);
  void finish_update(Replica& engine);
  void repeat_resets(const PlannedEpisode& episode, Replica& engine);
  void sleep_and_update(const PlannedEpisode& episode, Replica& engine, int level);
  void write_unannounced(const PlannedEpisode& episode, Replica& engine);
  void update_and_fail(const PlannedEpisode& episode, Replica& engine);
  void crash(const PlannedEpisode& episode, Replica& engine);
  void resume(Replica& engine);
  void dwell(const PlannedEpisode& episode) { kernel_.sleep_for(episode.dwell); }
  void probe(std::size_t number);
  const Ticket* ask(std::size_t number, PlannedRequest planned);
  std::uint64_t evicted_blocks();
  std::size_t readable_blocks(const Replica& engine, const PlannedRequest& planned);
  void check_probe(const Ticket& ticket, std::size_t expected_tokens);

  const Plan plan_;
  Kernel kernel_;
  SimClock clock_;
  Verdict verdict_;
  BlockHasher hasher_;
  Oracle oracle_;
  SimTaskQueue store_thread_;
  MemoryStore memory_store_;
  SeededRandom store_random_;
  FaultyStore faulty_store_;
  SharedStore store_;
  NetworkFaults network_;
  std::vector<std::vector<std::unique_ptr<Replica>>> lives_;  // by number; the last one lives
  std::vector<std::unique_ptr<Ticket>> tickets_;
  // By replica and id; the oldest first, since an id may be used again before its user
  // has seen the end of the one before.
  std::map<std::pair<std::size_t, std::string>, std::deque<Ticket*>> open_;
  std::vector<Key> foreign_;
  std::size_t fibers_running_ = 0;
  bool planned_is_done_ = false;
};

}  // namespace newmoon::sim
