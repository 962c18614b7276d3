// ModelRunner: the forward pass, behind which llama.cpp (or the simulator's model)
// lives. Tokens in, tokens out; KV lives in the blocks of a BlockMemory that the
// engine's block tables name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "hash/block.h"
#include "hash/block_hash.h"
#include "hash/scope.h"

namespace newmoon {

struct ModelInfo {
  std::string name;
  // Everything besides model and weights that must agree for KV bytes to be reusable:
  // layers, heads, KV types, numerics of the forward pass. Part of the scope.
  std::string layout;
  int vocab_size = 0;
  int context_tokens_max = 0;  // of one sequence
  int layer_count = 0;
  int block_size = 16;      // tokens
  int sequences_max = 0;    // slots
  int step_tokens_max = 0;  // the scheduler's token budget a step
  // The shortest run of prompt tokens that may be computed by itself. More than 1
  // where the numerics of short chunks differ (exact mode, docs/architecture.md).
  int prefill_tokens_min = 1;
  Token end_of_sequence = -1;
};

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;
  std::uint64_t seed = 0;  // same seed, same tokens
  int logprobs = -1;       // -1: none; n: the sampled token's and the n best
};

// One sequence's share of a step.
struct SequenceStep {
  int slot = 0;  // in [0, sequences_max): the stream this sequence owns while it runs
  // The slot held another sequence or other weights: its context [0,
  // num_computed_tokens), a multiple of block_size, is to be taken from `blocks`.
  bool restart = false;
  std::uint32_t num_computed_tokens = 0;
  std::vector<Token> tokens;    // to compute now, at positions num_computed_tokens...
  std::vector<BlockId> blocks;  // block table over all of it; full blocks are written back
  const SamplingParams* sampling = nullptr;  // null: no token is wanted after this chunk
  std::uint64_t sample_index = 0;            // how many tokens were sampled before
};
struct StepInput {
  std::vector<SequenceStep> sequences;
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;
  int rank = 0;  // 1 = the most likely
};
struct SampledToken {
  Token token = 0;
  std::optional<TokenLogprob> logprob;
  std::vector<TokenLogprob> top_logprobs;
};
struct StepOutput {
  std::vector<std::optional<SampledToken>> sampled;  // parallel to StepInput::sequences
};

// Ways weights change.
struct LoadGguf {
  std::string path;
};
struct SetTensors {  // in place; every name must exist with exactly that many bytes
  std::vector<std::pair<std::string, Bytes>> tensors;
};
struct SetLora {  // replaces the adapter in force; "" = none
  std::string path;
  float scale = 1.0f;
};
using WeightUpdate = std::variant<LoadGguf, SetTensors, SetLora>;

// One thread at a time (the engine's loop or the executor's).
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const ModelInfo& info() const = 0;

  // kBadRequest: the input breaks a rule above; the KV of the slots named in it is
  // undefined afterwards.
  virtual Result<StepOutput> execute(const StepInput& input) = 0;

  // Not half done: on an error the old weights are in force, or the error says that
  // the model is unusable until a LoadGguf succeeds (kInternal).
  virtual Status update_weights(const WeightUpdate& update) = 0;
  // Of the tensors in memory and the adapter in force; re-hashes only what changed.
  virtual Result<DigestIdentity> weights_digest() = 0;

  // Level 1 drops all KV and keeps the weights; level 2 frees the model as well.
  virtual Status sleep(int level) = 0;
  // Undoes sleep; after level 2 the last GGUF and adapter are loaded anew.
  virtual Status wake_up() = 0;
};

}  // namespace newmoon
