#include "model/test_model_runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "hash/sha256.h"

namespace newmoon {
namespace {

constexpr std::size_t kHalfEntryBytes = toy::kKvEntryBytes / 2;

std::uint64_t digest64(std::string_view text) {
  return load_le<std::uint64_t>(sha256(as_bytes(text)).data());
}

}  // namespace

KvLayout TestModelRunner::kv_layout(const Options& options) {
  const std::vector<std::uint64_t> half(
      static_cast<std::size_t>(options.layer_count),
      kHalfEntryBytes * static_cast<std::uint64_t>(options.block_size));
  return {.k_layer_bytes = half, .v_layer_bytes = half};
}

TestModelRunner::TestModelRunner(Options options, KvArena& arena)
    : options_(options),
      arena_(arena),
      base_(options.weights),
      weights_(options.weights),
      slot_tokens_(static_cast<std::size_t>(options.sequences_max), 0) {
  info_.name = "toy";
  info_.layout = "toy, " + std::to_string(options.layer_count) + " layers, blocks of " +
                 std::to_string(options.block_size);
  info_.vocab_size = options.vocab_size;
  info_.context_tokens_max = options.context_tokens_max;
  info_.layer_count = options.layer_count;
  info_.block_size = options.block_size;
  info_.sequences_max = options.sequences_max;
  info_.step_tokens_max = options.step_tokens_max;
  info_.prefill_tokens_min = options.prefill_tokens_min;
}

WeightUpdate TestModelRunner::set_weights(std::uint64_t weights) {
  Bytes bytes(sizeof weights);
  store_le(bytes.data(), weights);
  return SetTensors{.tensors = {{std::string(kTensor), std::move(bytes)}}};
}

toy::Weights TestModelRunner::of_layer(std::uint64_t weights, std::size_t layer) {
  return toy::mix(weights + layer);
}

std::vector<Token> TestModelRunner::cold_tokens(const Options& options, std::uint64_t weights,
                                                std::span<const Token> prompt, std::size_t count) {
  std::vector<toy::Weights> by_layer;
  for (std::size_t i = 0; i < static_cast<std::size_t>(options.layer_count); ++i) {
    by_layer.push_back(of_layer(weights, i));
  }
  return toy::cold_tokens(by_layer, prompt, count, options.vocab_size);
}

std::uint64_t TestModelRunner::effective_weights() const {
  return lora_ == 0 ? weights_ : toy::mix(weights_ ^ lora_);
}

// --- forward pass ---

Status TestModelRunner::check(const SequenceStep& sequence) const {
  const auto bad = [&](const std::string& why) {
    return fail(Code::kBadRequest, "slot " + std::to_string(sequence.slot) + ": " + why);
  };
  if (sequence.slot < 0 || sequence.slot >= options_.sequences_max) return bad("no such slot");
  if (sequence.tokens.empty()) return bad("no tokens to compute");
  const auto block_size = static_cast<std::uint32_t>(options_.block_size);
  if (sequence.restart && sequence.num_computed_tokens % block_size != 0) {
    return bad("a restart's context must be whole blocks");
  }
  const std::uint32_t held = slot_tokens_[static_cast<std::size_t>(sequence.slot)];
  if (!sequence.restart && held != sequence.num_computed_tokens) {
    return bad("its stream holds " + std::to_string(held) + " tokens, not " +
               std::to_string(sequence.num_computed_tokens));
  }
  const std::size_t tokens = sequence.num_computed_tokens + sequence.tokens.size();
  if (tokens > static_cast<std::size_t>(options_.context_tokens_max)) return bad("too long");
  if (sequence.blocks.size() * block_size < tokens) return bad("the block table is too short");
  const auto is_no_block = [&](BlockId block) {
    return block <= kNullBlock || static_cast<std::size_t>(block) >= arena_.block_count();
  };
  if (std::ranges::any_of(sequence.blocks, is_no_block)) return bad("no such block");
  return {};
}

toy::KvEntry TestModelRunner::load(std::span<const BlockId> blocks, std::uint32_t position,
                                   std::size_t layer) {
  const auto block_size = static_cast<std::uint32_t>(options_.block_size);
  const BlockId block = blocks[position / block_size];
  const std::size_t offset = position % block_size * kHalfEntryBytes;
  const auto low = load_le<std::uint32_t>(arena_.k(block, layer).data() + offset);
  const auto high = load_le<std::uint32_t>(arena_.v(block, layer).data() + offset);
  return std::uint64_t{high} << 32 | low;
}

void TestModelRunner::store(std::span<const BlockId> blocks, std::uint32_t position,
                            std::size_t layer, toy::KvEntry entry) {
  const auto block_size = static_cast<std::uint32_t>(options_.block_size);
  const BlockId block = blocks[position / block_size];
  const std::size_t offset = position % block_size * kHalfEntryBytes;
  store_le(arena_.k(block, layer).data() + offset, static_cast<std::uint32_t>(entry));
  store_le(arena_.v(block, layer).data() + offset, static_cast<std::uint32_t>(entry >> 32));
}

// The logits of the last token, by layer.
std::vector<std::uint64_t> TestModelRunner::compute(const SequenceStep& sequence) {
  std::vector<std::uint64_t> logits;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(options_.layer_count); ++layer) {
    const toy::Weights weights = of_layer(effective_weights(), layer);
    toy::History history = toy::kEmptyHistory;
    std::uint32_t position = 0;
    for (; position < sequence.num_computed_tokens; ++position) {
      history = toy::attend(history, load(sequence.blocks, position, layer));
    }
    for (const Token token : sequence.tokens) {
      const toy::KvEntry entry = toy::kv_of(weights, history, token);
      store(sequence.blocks, position++, layer, entry);
      history = toy::attend(history, entry);
    }
    logits.push_back(toy::logits_of(weights, history));
  }
  return logits;
}

Result<StepOutput> TestModelRunner::execute(const StepInput& input) {
  if (sleep_level_ != 0) return fail(Code::kInternal, "the model sleeps");
  if (execute_error_) return std::unexpected(*std::exchange(execute_error_, std::nullopt));
  for (const SequenceStep& sequence : input.sequences) {
    if (Status status = check(sequence); !status) return std::unexpected(status.error());
  }
  ++steps_;
  StepOutput output;
  for (const SequenceStep& sequence : input.sequences) {
    const std::vector<std::uint64_t> logits = compute(sequence);
    const auto computed = static_cast<std::uint32_t>(sequence.tokens.size());
    slot_tokens_[static_cast<std::size_t>(sequence.slot)] = sequence.num_computed_tokens + computed;
    tokens_computed_ += computed;
    std::optional<SampledToken>& sampled = output.sampled.emplace_back();
    if (sequence.sampling == nullptr) continue;
    sampled.emplace().token = toy::token_of(logits, options_.vocab_size);
  }
  return output;
}

// --- weights ---

Status TestModelRunner::update_weights(const WeightUpdate& update) {
  if (update_error_) return std::unexpected(*std::exchange(update_error_, std::nullopt));
  if (sleep_level_ == 2) return fail(Code::kBadRequest, "the model sleeps; wake it up first");
  if (const auto* gguf = std::get_if<LoadGguf>(&update)) {
    base_ = weights_ = digest64(gguf->path);
  } else if (const auto* lora = std::get_if<SetLora>(&update)) {
    lora_ = lora->path.empty() ? 0 : digest64(lora->path + "@" + std::to_string(lora->scale));
  } else {
    const auto& tensors = std::get<SetTensors>(update).tensors;
    for (const auto& [name, bytes] : tensors) {
      if (name != kTensor || bytes.size() != sizeof weights_) {
        return fail(Code::kBadRequest, "tensor " + name + ": there is only \"weights\", 8 bytes");
      }
    }
    for (const auto& [name, bytes] : tensors) weights_ = load_le<std::uint64_t>(bytes.data());
  }
  return {};
}

Result<DigestIdentity> TestModelRunner::weights_digest() {
  std::array<std::uint8_t, 8> bytes;
  store_le(bytes.data(), effective_weights());
  return DigestIdentity{sha256(bytes)};
}

Status TestModelRunner::sleep(int level) {
  sleep_level_ = level;
  std::ranges::fill(slot_tokens_, 0u);
  return {};
}

Status TestModelRunner::wake_up() {
  if (std::exchange(sleep_level_, 0) == 2) weights_ = base_;
  return {};
}

}  // namespace newmoon
