// EngineRequest: one generation as the scheduler keeps it, and what a caller gives and
// gets. Belongs to the engine's loop thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "connector/metadata.h"
#include "hash/block_hash.h"
#include "model/model_runner.h"

namespace newmoon {

enum class RequestStatus : std::uint8_t {
  kWaiting,               // in the queue; may hold KV that was loaded for it
  kWaitingForRemoteKvs,   // a load into its blocks is under way
  kRunning,               // owns a slot
  kPreempted,             // in the queue again, output kept, KV dropped
  kFinishedStopped,       // end of sequence or a stop token
  kFinishedLengthCapped,  // max_tokens or the model's context
  kFinishedAborted,
  kFinishedError,
};
inline bool is_finished(RequestStatus status) { return status >= RequestStatus::kFinishedStopped; }
// "waiting", ..., and for the finished ones vLLM's reasons "stop", "length", "abort", "error".
std::string_view to_string(RequestStatus status);

// Output tokens [start, end) were sampled by weights labelled `version` (vLLM's
// WeightVersionSpan).
struct WeightVersionSpan {
  std::string version;
  std::uint32_t start = 0;
  std::uint32_t end = 0;
  friend bool operator==(const WeightVersionSpan&, const WeightVersionSpan&) = default;
};

// Where the KV of a request's tokens came from, summed over its admissions.
struct RequestCounters {
  std::uint64_t local_hit_tokens = 0;
  std::uint64_t external_hit_tokens = 0;
  std::uint64_t computed_tokens = 0;
  std::uint32_t preemptions = 0;
};

// What a caller asks for.
struct RequestInput {
  RequestId id;
  std::vector<Token> prompt;
  SamplingParams sampling;
  std::uint32_t max_tokens = 16;
  std::vector<Token> stop_token_ids;
  bool ignore_eos = false;
  ExtraKeys extra_keys;
  // Weights may change under it: it goes on with the KV it has, of older weights,
  // and publishes nothing, instead of being recomputed (contract W1's exception).
  bool continue_across_update = false;
};

// What a step brought for one request.
struct RequestOutput {
  RequestId id;
  std::vector<SampledToken> tokens;  // new ones
  std::string weight_version;        // of the newest token; "" before the first
  bool finished = false;
  // The rest is set if finished.
  RequestStatus status = RequestStatus::kRunning;
  std::string error;  // kFinishedError
  std::vector<WeightVersionSpan> weight_versions;
  RequestCounters counters;
};

struct EngineRequest {
  explicit EngineRequest(RequestInput request_input);

  std::uint32_t num_tokens() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  bool step_in_flight() const { return step_id != 0; }
  bool holds_blocks() const { return !blocks.empty(); }
  void append(Token token, const std::string& weight_version);

  const RequestInput input;  // its prompt has moved to `tokens`
  const std::uint32_t num_prompt_tokens;

  std::vector<Token> tokens;            // prompt and output
  std::vector<BlockHash> block_hashes;  // of its full blocks
  RequestStatus status = RequestStatus::kWaiting;
  bool started = false;  // was scheduled at least once: a `wait` pause waits for it

  std::vector<BlockId> blocks;  // block table; one reference each
  std::uint32_t num_computed_tokens = 0;
  std::size_t num_published_blocks = 0;  // of the table, looked at for the local cache

  std::optional<int> slot;                // while running
  bool restart = true;                    // its slot's stream does not hold its context (yet)
  std::uint64_t step_id = 0;              // the step in flight with it; 0: none
  std::uint64_t load_id = 0;              // the load under way; 0: none (rule ONE-LOAD)
  std::uint32_t num_external_tokens = 0;  // of that load

  std::vector<WeightVersionSpan> weight_versions;
  RequestCounters counters;
};
// Shared with the steps in flight that name it.
using RequestPtr = std::shared_ptr<EngineRequest>;

}  // namespace newmoon
