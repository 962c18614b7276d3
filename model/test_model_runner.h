// TestModelRunner: a ModelRunner whose forward pass is the toy model
// (model/toy_model.h). It attends to the bytes that are in the blocks, of every
// layer and so of every rank, and writes its own there: a stale, misplaced or mixed
// block changes what it says. For tests and for `newmoon seed`.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/kv_arena.h"
#include "model/model_runner.h"
#include "model/toy_model.h"

namespace newmoon {

class TestModelRunner final : public ModelRunner {
 public:
  struct Options {
    int layer_count = 2;
    int block_size = 4;
    int sequences_max = 4;
    int step_tokens_max = 32;
    int prefill_tokens_min = 1;
    int context_tokens_max = 256;
    int vocab_size = 97;
    std::uint64_t weights = 1;
  };
  // A layer keeps a token's entry half in K and half in V.
  static KvLayout kv_layout(const Options& options);
  // `arena` has that layout and outlives the runner.
  TestModelRunner(Options options, KvArena& arena);

  // The one tensor that SetTensors may write: 8 bytes, little-endian.
  static constexpr std::string_view kTensor = "weights";
  static WeightUpdate set_weights(std::uint64_t weights);
  // What an engine that only ever held these weights says (the cold oracle).
  static std::vector<Token> cold_tokens(const Options& options, std::uint64_t weights,
                                        std::span<const Token> prompt, std::size_t count);

  // The next execute(), or update_weights(), returns this and changes nothing.
  void fail_next_execute(Error error) { execute_error_ = std::move(error); }
  void fail_next_update(Error error) { update_error_ = std::move(error); }
  std::uint64_t steps() const { return steps_; }  // executed
  std::uint64_t tokens_computed() const { return tokens_computed_; }

  const ModelInfo& info() const override { return info_; }
  Result<StepOutput> execute(const StepInput& input) override;
  // A GGUF's or adapter's weights follow from its path.
  Status update_weights(const WeightUpdate& update) override;
  Result<DigestIdentity> weights_digest() override;
  Status sleep(int level) override;
  Status wake_up() override;

 private:
  Status check(const SequenceStep& sequence) const;
  std::vector<std::uint64_t> compute(const SequenceStep& sequence);
  std::uint64_t effective_weights() const;
  static toy::Weights of_layer(std::uint64_t weights, std::size_t layer);
  toy::KvEntry load(std::span<const BlockId> blocks, std::uint32_t position, std::size_t layer);
  void store(std::span<const BlockId> blocks, std::uint32_t position, std::size_t layer,
             toy::KvEntry entry);

  const Options options_;
  KvArena& arena_;
  ModelInfo info_;
  std::uint64_t base_ = 0;     // of the GGUF
  std::uint64_t weights_ = 0;  // base_, or what SetTensors wrote over it
  std::uint64_t lora_ = 0;
  int sleep_level_ = 0;
  std::vector<std::uint32_t> slot_tokens_;  // the length of the stream in each slot
  std::optional<Error> execute_error_;
  std::optional<Error> update_error_;
  std::uint64_t steps_ = 0;
  std::uint64_t tokens_computed_ = 0;
};

}  // namespace newmoon
