// Plan: what one seed draws before the run begins: the shape of the engines, the
// faults, the requests and the weight updates (swarm testing: options too differ from
// seed to seed, so that each fault also occurs alone).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/engine_core.h"
#include "hash/block_hash.h"
#include "sim/network.h"
#include "sim/shared_store.h"

namespace newmoon::sim {

struct PlannedRequest {
  std::size_t replica = 0;
  Time at{0};
  std::string id;
  std::vector<Token> prompt;
  std::string cache_salt;
  std::uint32_t max_tokens = 1;
  bool continue_across_update = false;
  bool abort = false;
  Duration abort_after{0};
};

// How a trainer goes about new weights, after the frameworks of reference part F.
enum class Protocol : std::uint8_t {
  kPauseAbort,    // pause abort + clear, update, finish, resume
  kPauseWait,     // pause wait + clear, ...
  kPauseKeep,     // pause keep + clear, ... (OpenRLHF)
  kPauseKeepMix,  // pause keep, nothing cleared: requests go on with mixed KV
  kInFlight,      // no pause at all (NeMo-RL)
  kSleep1,        // verl: pause, sleep, wake, update, three resets, resume
  kSleep2,
  kNoFinish,        // update without start and finish (verl IPC)
  kResetOnly,       // no update: one to three resets
  kPauseOnly,       // no update: pause and resume, cleared or not
  kPartialFailure,  // some ranks refuse; tried again, sometimes after steps
  kUnannounced,     // a rank's weights are written behind the engine's back
  kUnknownWriter,   // an unknown RPC writes weights, announced
  kCrash,           // a rank dies, the engine is restarted
  kCount
};
std::string_view to_string(Protocol protocol);

struct PlannedEpisode {
  std::size_t replica = 0;
  Time at{0};
  Protocol protocol = Protocol::kInFlight;
  WeightUpdate update;
  int resets = 1;
  bool clear_cache = true;
  bool reset_running = true;
  bool reset_connector = true;
  bool keep_verified = false;
  bool finish = true;
  int pause_mode = 0;    // for kPauseOnly: abort, wait, keep
  std::size_t rank = 0;  // that fails, dies or is written to
  bool torn = false;     // the failing rank's weights changed all the same
  Duration dwell{0};     // between the calls
};

struct Plan {
  std::uint64_t seed = 0;

  std::size_t replicas = 1;
  std::size_t ranks = 1;
  int block_size = 4;
  std::size_t block_count = 16;  // of each rank, with the null block
  int slots = 2;
  int step_tokens_max = 8;
  int prefill_tokens_min = 1;
  int context_tokens_max = 64;
  int vocab_size = 50000;
  bool paged = false;
  int steps_in_flight_max = 1;
  bool writes_overtake = false;
  IdentityMode identity = IdentityMode::kDigest;
  bool remove_all = false;  // reset mode remove_all, one replica
  bool checksum = true;
  bool kv_events = false;
  std::uint32_t min_load_tokens = 0;
  std::size_t batch_blocks_max = 64;
  std::size_t jobs_max = 256;
  std::uint64_t store_bytes = 0;
  Duration deadline{0};  // of pauses and resets
  Duration lookup_timeout{0};
  Duration load_timeout{0};  // 0: none
  Duration step_max{0};
  unsigned stall_percent = 0;
  Duration write_gap_max{0};

  NetworkFaults network;
  StoreFaults store;
  std::string store_rules;  // of the FaultyStore under it (store/fault_rule.h); "" = none

  std::vector<PlannedRequest> requests;
  std::vector<PlannedEpisode> episodes;
  Time faults_end{0};
};

Plan draw_plan(std::uint64_t seed);

// Weights that a trainer moves between: 0 is what an engine starts with.
WeightUpdate full_weights(std::size_t version);

}  // namespace newmoon::sim
