// The main job, as `newmoon rollout` and `./dev demo` run it: engine processes that
// share one store answer real problems while their weights change, and every output
// token is compared with a cold engine's.
//
//   rollout.cc          the cycles: generate, pause -> update -> reset -> resume
//   rollout_rolling.cc  the same, one engine after the other while the rest answer
//   rollout_run.cc      what both forms share: requests, calls, books
//   rollout_fleet.cc    the processes
//   rollout_verdict.cc  cold engines, and what differs from them
//   rollout_report.cc   the table, the verdict line, the JSON
//   engine_process.cc   the other side of the pipe
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/model_files.h"
#include "model/tokenizer.h"

namespace newmoon {

struct RolloutOptions {
  ModelFiles files;
  std::string store = "memory";  // memory, mooncake: its server is started for the run
  std::uint64_t store_bytes = std::uint64_t{2} << 30;
  std::string mode = "exact";  // numerics of the runner: exact | fast
  std::string faults;          // store/faulty_store.h and transport rules; "" = none
  std::string json_path;
  std::string update = "together";  // together | rolling: one engine after the other
  int engines = 2;
  int ranks = 2;
  int cycles = 5;
  int requests = 20;             // a cycle, over all engines
  int max_tokens = 24;           // output tokens a request
  int shots = 4;                 // problems in the shared prefix
  int kv_blocks = 960;           // of each engine's own cache
  std::string pause_mode;        // for every update; "": abort, wait, keep in turn
  bool repeat_problems = false;  // every cycle asks the same ones, so that stale hits show
  bool verify = true;
  int stop_fd = -1;  // readable once the run must end, cli/stop_signals.h; -1: never
};

// A stretch of one request's output that one set of weights produced.
struct OutputSpan {
  std::string weights;
  std::string request_id;
  std::vector<std::int32_t> context;  // prompt and the output before the stretch
  std::vector<std::int32_t> tokens;
};

struct CycleReport {
  std::string weights;
  std::string pause_mode;  // that ended the cycle before; "" for the first
  std::uint64_t prompt_tokens = 0;
  std::uint64_t local_hit_tokens = 0;
  std::uint64_t external_hit_tokens = 0;
  std::uint64_t computed_tokens = 0;
  // Of each engine's first request with these weights: all of them, and the engine that had
  // the weights first and second. The first can hit what an earlier cycle stored, the second
  // what the first one did.
  std::uint64_t first_use_external_hit_tokens = 0;
  std::uint64_t first_engine_external_hit_tokens = 0;
  std::uint64_t second_engine_external_hit_tokens = 0;
  // Rolling: answered with the weights before while an engine already ran on these.
  std::uint64_t two_identity_requests = 0;
  std::uint64_t output_tokens = 0;
  double seconds = 0;   // the whole cycle, update included
  double pause_ms = 0;  // the longest of the engines
  double update_ms = 0;
  double reset_ms = 0;
  double resume_ms = 0;
  nlohmann::json reset_steps_ms;  // of the slowest engine: step name -> ms
};

struct RolloutReport {
  std::vector<CycleReport> cycles;
  std::vector<OutputSpan> spans;
  std::uint64_t compared_requests = 0;
  std::vector<std::string> differing_requests;
  bool verified = false;
  bool rolling = false;
  bool hits_required = true;  // not with faults, which make loads and saves fail

  // Whether each cycle's engines found blocks of each other in the store, and the
  // first request of a cycle found those of an earlier cycle with the same weights.
  bool external_hits_everywhere() const;
  bool return_hits() const;
  // Whether, in each rolling update, two identities were live and the second engine to
  // reach the new one found what the first had stored.
  bool rolling_hits() const;
  bool pass() const;
};

// The weights of the cycles: base, norms, adapter, other, base, norms, ...
std::string weights_of_cycle(int cycle);

// What the engines will have of tokens and blocks, so that what does not fit is refused
// before they start.
inline constexpr int kRolloutContextTokens = 2048;
inline constexpr int kRolloutBlockTokens = 16;

// kBadRequest: an option is out of range, or a request would not fit. Prints progress on
// stderr. `load_tokenizer`: the base model's.
Result<RolloutReport> run_rollout(
    const RolloutOptions& options,
    const std::function<Result<std::unique_ptr<Tokenizer>>()>& load_tokenizer);

// Fills compared_requests and differing_requests from cold engines.
Status compare_with_cold_engines(const RolloutOptions& options, RolloutReport& report);

void print_report(const RolloutReport& report);
nlohmann::json to_json(const RolloutReport& report);

// The command line of an engine process (engine_process.cc), cold or not.
std::vector<std::string> engine_process_argv(const RolloutOptions& options, const std::string& name,
                                             const std::string& store, const std::string& weights);

}  // namespace newmoon
