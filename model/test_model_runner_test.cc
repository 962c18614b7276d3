#include "model/test_model_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace newmoon {
namespace {

class TestModelRunnerTest : public ::testing::Test {
 protected:
  const TestModelRunner::Options options_;
  std::unique_ptr<KvArena> arena_ = *KvArena::create(TestModelRunner::kv_layout(options_), 16);
  TestModelRunner runner_{options_, *arena_};
  const SamplingParams greedy_;
  const std::vector<Token> prompt_ = {5, 6, 7, 8, 9, 10};

  // Computes prompt_[from...] in slot 0; returns the token it then says.
  Result<Token> run(std::uint32_t from, bool restart, std::vector<BlockId> blocks = {3, 1}) {
    SequenceStep sequence;
    sequence.restart = restart;
    sequence.num_computed_tokens = from;
    sequence.tokens.assign(prompt_.begin() + from, prompt_.end());
    sequence.blocks = std::move(blocks);
    sequence.sampling = &greedy_;
    const Result<StepOutput> output = runner_.execute({.sequences = {sequence}});
    if (!output) return std::unexpected(output.error());
    return output->sampled.at(0)->token;
  }
  Token cold(std::uint64_t weights) const {
    return TestModelRunner::cold_tokens(options_, weights, prompt_, 1).front();
  }
};

TEST_F(TestModelRunnerTest, SaysWhatTheOracleSays) {
  EXPECT_EQ(run(0, true), cold(1));
  // From its first block, in another slot's stead.
  EXPECT_EQ(run(4, true), cold(1));
}

TEST_F(TestModelRunnerTest, EveryByteOfTheContextMatters) {
  ASSERT_TRUE(run(0, true));
  for (std::size_t i = 0; i < arena_->block_bytes(); ++i) {
    arena_->block(3)[i] ^= 1;
    EXPECT_NE(run(4, true), cold(1)) << "byte " << i;
    arena_->block(3)[i] ^= 1;
  }
  EXPECT_NE(run(4, true, {2, 1}), cold(1));  // another block in its place
}

TEST_F(TestModelRunnerTest, KvOfOtherWeightsChangesTheAnswer) {
  ASSERT_TRUE(run(0, true));
  ASSERT_TRUE(runner_.update_weights(TestModelRunner::set_weights(2)));
  EXPECT_NE(run(4, true), cold(2));
  EXPECT_EQ(run(0, true), cold(2));
}

TEST_F(TestModelRunnerTest, DigestFollowsTheWeights) {
  const DigestIdentity first = *runner_.weights_digest();
  ASSERT_TRUE(runner_.update_weights(SetLora{.path = "a", .scale = 1.0f}));
  const DigestIdentity adapted = *runner_.weights_digest();
  EXPECT_NE(adapted, first);
  ASSERT_TRUE(runner_.update_weights(SetLora{.path = "a", .scale = 0.5f}));
  EXPECT_NE(*runner_.weights_digest(), adapted);
  ASSERT_TRUE(runner_.update_weights(SetLora{}));
  EXPECT_EQ(*runner_.weights_digest(), first);
  ASSERT_TRUE(runner_.update_weights(LoadGguf{.path = "other.gguf"}));
  EXPECT_NE(*runner_.weights_digest(), first);
}

TEST_F(TestModelRunnerTest, LevelTwoForgetsTensorsWrittenInPlace) {
  ASSERT_TRUE(runner_.update_weights(TestModelRunner::set_weights(2)));
  ASSERT_TRUE(runner_.sleep(1));
  EXPECT_EQ(run(0, true).error().code, Code::kInternal);
  ASSERT_TRUE(runner_.wake_up());
  EXPECT_EQ(run(0, true), cold(2));
  ASSERT_TRUE(runner_.sleep(2));
  ASSERT_TRUE(runner_.wake_up());
  EXPECT_EQ(run(0, true), cold(1));
}

TEST_F(TestModelRunnerTest, RefusesWhatTheContractForbids) {
  ASSERT_TRUE(run(0, true));
  EXPECT_EQ(run(4, false).error().code, Code::kBadRequest);  // its stream holds 6 tokens
  EXPECT_EQ(run(5, true).error().code, Code::kBadRequest);   // not whole blocks
  EXPECT_EQ(run(0, true, {3}).error().code, Code::kBadRequest);
  EXPECT_EQ(run(0, true, {3, kNullBlock}).error().code, Code::kBadRequest);
  EXPECT_EQ(run(0, true, {3, 16}).error().code, Code::kBadRequest);
  const SetTensors unknown{.tensors = {{"bias", Bytes(8)}}};
  EXPECT_EQ(runner_.update_weights(unknown).error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace newmoon
