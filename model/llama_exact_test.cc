// Which (mode, weights) give bit for bit the logits of a cold engine, whatever ran
// before or runs beside. What is claimed in docs/guarantees.md is what passes here.
#include <gtest/gtest.h>

#include <random>

#include "model/llama_runner.h"
#include "model/llama_test_engine.h"

namespace newmoon {
namespace {

enum class Weights { kQ4_1, kQ4_1WithLora, kF16 };

// More than 256, where the attention kernel has another path for one row alone
// (ggml-cpu/ops.cpp, use_split_kv_path: caches are read 256 cells at a time).
constexpr std::size_t kPromptTokens = 272;
constexpr std::size_t kSampled = 5;
constexpr std::size_t kTokensMax = 320;

class LlamaExactTest : public ::testing::TestWithParam<Weights> {
 protected:
  using Logits = std::vector<std::vector<float>>;  // of each token sampled

  static LlamaOptions options() {
    return {.model_path = test_model(GetParam() == Weights::kF16 ? "f16" : "base"),
            .mode = LlamaMode::kExact,
            .context_tokens_max = kTokensMax,
            .sequences_max = 4};
  }
  static void put_adapter_on(TestEngine& engine) {
    if (GetParam() != Weights::kQ4_1WithLora) return;
    const SetLora adapter{.path = test_model("adapter"), .scale = 1.0f};
    ASSERT_TRUE(engine.runner().update_weights(adapter));
  }

  static Logits cold_logits() {
    TestEngine engine(options());
    put_adapter_on(engine);
    TestSequence sequence = engine.start(0, test_prompt(kPromptTokens), kTokensMax);
    EXPECT_TRUE(engine.generate(sequence, kSampled));
    return sequence.logits;
  }

  // The prompt with its first `hit` tokens from the blocks of the first time.
  TestSequence from_blocks(int slot, std::size_t hit) {
    return engine_.start(slot, test_prompt(kPromptTokens), kTokensMax, blocks_, hit);
  }

  // Prefill in pieces beside two other sequences' prefill and decode.
  Logits among_others() {
    TestSequence target = from_blocks(1, 0);
    blocks_ = target.blocks;
    TestSequence left = engine_.start(0, test_prompt(70, 1), kTokensMax);
    TestSequence right = engine_.start(2, test_prompt(9, 2), kTokensMax);
    while (target.sampled < kSampled) {
      const auto share = [](TestSequence& sequence, std::size_t most) {
        return TestEngine::Share{&sequence, std::min(sequence.left(), most)};
      };
      EXPECT_TRUE(engine_.step({share(right, 20), share(target, 45), share(left, 33)}));
    }
    return target.logits;
  }

  Logits alone(std::size_t hit) {
    TestSequence again = from_blocks(3, hit);
    EXPECT_TRUE(engine_.generate(again, kSampled));
    return again.logits;
  }

  Logits in_pieces(std::size_t piece) {
    TestSequence again = from_blocks(1, kPromptTokens - 64);
    EXPECT_TRUE(engine_.prefill(again, piece));
    return again.logits;
  }

  Logits beside_mates(int mate_count) {
    std::vector<TestSequence> mates;
    for (int i = 0; i < mate_count; ++i) {
      mates.push_back(engine_.start(3 - i, test_prompt(3 + i, 5), kTokensMax));
      EXPECT_TRUE(engine_.prefill(mates.back()));
    }
    TestSequence again = from_blocks(0, kPromptTokens - 16);
    EXPECT_TRUE(engine_.prefill(again));
    while (again.sampled < kSampled) {
      std::vector<TestEngine::Share> shares{{&again, 1}};
      for (TestSequence& mate : mates) shares.push_back({&mate, 1});
      EXPECT_TRUE(engine_.step(shares));
    }
    return again.logits;
  }

  // Others have left cells behind in every slot, of lengths that do not agree.
  Logits after_churn(std::mt19937& random) {
    std::vector<TestSequence> others;
    for (int slot = 0; slot < 4; ++slot) {
      others.push_back(engine_.start(slot, test_prompt(2 + random() % 30, slot), kTokensMax));
      EXPECT_TRUE(engine_.prefill(others.back(), 1 + random() % 30));
    }
    const int slot = static_cast<int>(random() % 4);
    TestSequence& mate = others[(slot + 1) % 4];
    TestSequence again = from_blocks(slot, 16 * (13 + random() % 4));
    while (again.sampled < kSampled) {
      const std::size_t count = std::min<std::size_t>(again.left(), 1 + random() % 40);
      EXPECT_TRUE(engine_.step({{&mate, 1}, {&again, count}}));
    }
    return again.logits;
  }

  TestEngine engine_{options()};
  std::vector<BlockId> blocks_;
};

TEST_P(LlamaExactTest, MatchesAColdEngine) {
  put_adapter_on(engine_);
  const Logits cold = cold_logits();
  ASSERT_EQ(cold.size(), kSampled);
  // ASSERT_TRUE, as the 49152 numbers of a mismatch tell nobody anything.
  ASSERT_TRUE(among_others() == cold);
  for (const std::size_t hit : {16u, 256u}) ASSERT_TRUE(alone(hit) == cold) << hit;
  for (const std::size_t piece : {1u, 2u, 17u, 33u}) {
    ASSERT_TRUE(in_pieces(piece)[0] == cold[0]) << piece;
  }
  for (const int mate_count : {1, 3}) ASSERT_TRUE(beside_mates(mate_count) == cold) << mate_count;
  std::mt19937 random(17);
  for (int round = 0; round < 2; ++round) ASSERT_TRUE(after_churn(random) == cold) << round;
}

std::string name_of(const ::testing::TestParamInfo<Weights>& info) {
  switch (info.param) {
    case Weights::kQ4_1:
      return "Q4_1";
    case Weights::kQ4_1WithLora:
      return "Q4_1WithLora";
    default:
      return "F16";
  }
}
INSTANTIATE_TEST_SUITE_P(ExactMode, LlamaExactTest,
                         ::testing::Values(Weights::kQ4_1, Weights::kQ4_1WithLora, Weights::kF16),
                         name_of);

}  // namespace
}  // namespace newmoon
