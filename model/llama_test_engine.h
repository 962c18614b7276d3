// For tests: the least of an engine that can drive a LlamaRunner, and the models that
// `./dev setup` leaves (NEWMOON_MODELS is their folder).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/kv_arena.h"
#include "model/llama_runner.h"
#include "model/llama_tokenizer.h"

namespace newmoon {

inline std::string test_model(const std::string& name) {
  return std::string(NEWMOON_MODELS) + "/" + name + ".gguf";
}

// Tokens of a text about computing, as many as asked for; `variant` makes them another's.
inline std::vector<Token> test_prompt(std::size_t count, int variant = 0) {
  static const std::vector<Token> all = [] {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      text += "Chapter " + std::to_string(i * 7 + 1) +
              ". The history of computing is longer than the history of computing hardware "
              "and includes methods intended for pen and paper or for chalk and slate, with or "
              "without the aid of tables. Long before abstractions like the number arose, there "
              "were mathematical concepts to serve the purposes of civilization: a rule to count "
              "how many items, ropes with twelve evenly spaced knots, sing-song mnemonics. ";
    }
    return (*LlamaTokenizer::load(test_model("base")))->encode(text, false);
  }();
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(all[(i + 37 * variant) % all.size()]);
  return tokens;
}

// A sequence as the scheduler would hold it.
struct TestSequence {
  int slot = 0;
  std::vector<Token> tokens;  // prompt and what was sampled
  std::vector<BlockId> blocks;
  std::size_t computed = 0;
  bool restart = true;
  SamplingParams sampling = {};
  std::uint64_t sampled = 0;
  std::vector<std::vector<float>> logits = {};  // of every token sampled

  std::size_t left() const { return tokens.size() - computed; }
};

class TestEngine {
 public:
  static constexpr std::size_t kBlocks = 512;

  explicit TestEngine(LlamaOptions options) {
    auto runner = LlamaRunner::load(std::move(options));
    EXPECT_TRUE(runner) << to_string(runner.error());
    runner_ = std::move(*runner);
    arena_ = std::move(*KvArena::create(runner_->kv_layout(), kBlocks));
    EXPECT_TRUE(runner_->attach(arena_.get()));
    runner_->set_logits_observer([this](int slot, std::span<const float> logits) {
      seen_.emplace_back(slot, std::vector<float>(logits.begin(), logits.end()));
    });
  }

  LlamaRunner& runner() { return *runner_; }
  KvArena& arena() { return *arena_; }

  // A sequence whose first `hit` tokens (whole blocks) lie in `blocks`; it gets blocks of
  // its own behind them, enough for `token_count_max` tokens.
  TestSequence start(int slot, std::vector<Token> prompt, std::size_t token_count_max,
                     std::vector<BlockId> blocks = {}, std::size_t hit = 0) {
    blocks.resize(hit / 16);
    TestSequence sequence{.slot = slot, .tokens = std::move(prompt), .blocks = std::move(blocks)};
    while (sequence.blocks.size() * 16 < token_count_max) sequence.blocks.push_back(next_++);
    sequence.computed = hit;
    return sequence;
  }

  struct Share {
    TestSequence* sequence = nullptr;
    std::size_t tokens = 0;
  };
  // One step; a share that reaches a sequence's end samples its next token.
  Status step(const std::vector<Share>& shares) {
    StepInput input;
    for (const auto& [sequence, count] : shares) {
      const auto first = sequence->tokens.begin() + static_cast<long>(sequence->computed);
      input.sequences.push_back(
          {.slot = sequence->slot,
           .restart = sequence->restart,
           .num_computed_tokens = static_cast<std::uint32_t>(sequence->computed),
           .tokens = std::vector<Token>(first, first + static_cast<long>(count)),
           .blocks = sequence->blocks,
           .sampling = count == sequence->left() ? &sequence->sampling : nullptr,
           .sample_index = sequence->sampled});
    }
    seen_.clear();
    Result<StepOutput> output = runner_->execute(input);
    if (!output) return std::unexpected(output.error());
    for (std::size_t i = 0; i < shares.size(); ++i)
      take(*shares[i].sequence, shares[i].tokens, output->sampled[i]);
    return {};
  }
  // Computes the prompt in pieces of `piece` tokens and samples the first token.
  Status prefill(TestSequence& sequence, std::size_t piece = 128) {
    while (sequence.left() > 0) {
      const Status done = step({{&sequence, std::min(piece, sequence.left())}});
      if (!done) return done;
      if (sequence.sampled > 0) return {};
    }
    return {};
  }
  // Samples until `count` tokens were sampled.
  Status generate(TestSequence& sequence, std::size_t count) {
    while (sequence.sampled < count) {
      if (const Status done = step({{&sequence, sequence.left()}}); !done) return done;
    }
    return {};
  }

 private:
  void take(TestSequence& sequence, std::size_t count, const std::optional<SampledToken>& sampled) {
    sequence.restart = false;
    sequence.computed += count;
    if (!sampled) return;
    ++sequence.sampled;
    sequence.tokens.push_back(sampled->token);
    for (auto& [slot, logits] : seen_) {
      if (slot == sequence.slot) sequence.logits.push_back(std::move(logits));
    }
  }

  std::unique_ptr<LlamaRunner> runner_;
  std::unique_ptr<KvArena> arena_;
  BlockId next_ = 1;
  std::vector<std::pair<int, std::vector<float>>> seen_;
};

}  // namespace newmoon
