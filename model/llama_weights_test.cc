// How weights change in a LlamaRunner, and what identifies them.
#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "model/llama_runner.h"
#include "model/llama_test_engine.h"

namespace newmoon {
namespace {

using ::testing::HasSubstr;

constexpr char kNorm[] = "blk.3.attn_norm.weight";

class LlamaWeightsTest : public ::testing::Test {
 protected:
  LlamaRunner& runner() { return engine_.runner(); }
  DigestIdentity digest() { return *runner().weights_digest(); }

  std::vector<float> logits() {
    TestSequence sequence = engine_.start(0, test_prompt(24), 32);
    EXPECT_TRUE(engine_.prefill(sequence));
    return sequence.logits.at(0);
  }
  std::string refusal(const WeightUpdate& update) {
    const Status status = runner().update_weights(update);
    if (status) return "accepted";
    EXPECT_EQ(status.error().code, Code::kBadRequest);
    return status.error().message;
  }
  SetTensors perturbed() {
    Bytes norm = *runner().get_tensor(kNorm);
    norm[2] ^= 0x20;
    return {{{kNorm, norm}}};
  }

  TestEngine engine_{
      {.model_path = test_model("base"), .context_tokens_max = 64, .sequences_max = 2}};
};

TEST_F(LlamaWeightsTest, TensorsInPlaceAndBack) {
  const DigestIdentity digest_before = digest();
  const std::vector<float> logits_before = logits();
  const SetTensors original{{{kNorm, *runner().get_tensor(kNorm)}}};

  ASSERT_TRUE(runner().update_weights(perturbed()));
  EXPECT_NE(digest(), digest_before);
  EXPECT_TRUE(logits() != logits_before);

  ASSERT_TRUE(runner().update_weights(original));
  EXPECT_EQ(digest(), digest_before);
  EXPECT_TRUE(logits() == logits_before);
}

TEST_F(LlamaWeightsTest, SameBytesByAnotherWaySameDigest) {
  const DigestIdentity base = digest();
  ASSERT_TRUE(runner().update_weights(LoadGguf{test_model("other")}));
  const DigestIdentity other = digest();
  EXPECT_NE(other, base);

  ASSERT_TRUE(runner().update_weights(LoadGguf{test_model("base")}));
  EXPECT_EQ(digest(), base) << "loaded again";
  ASSERT_TRUE(runner().update_weights(perturbed()));
  ASSERT_TRUE(runner().update_weights(LoadGguf{test_model("other")}));
  EXPECT_EQ(digest(), other) << "over a perturbed tensor";
  TestEngine fresh(
      {.model_path = test_model("other"), .context_tokens_max = 64, .sequences_max = 2});
  EXPECT_EQ(*fresh.runner().weights_digest(), other) << "in another engine";
}

TEST_F(LlamaWeightsTest, ReloadedWeightsAreTheFilesOwn) {
  ASSERT_TRUE(runner().update_weights(LoadGguf{test_model("other")}));
  TestEngine fresh(
      {.model_path = test_model("other"), .context_tokens_max = 64, .sequences_max = 2});
  TestSequence sequence = fresh.start(0, test_prompt(24), 32);
  ASSERT_TRUE(fresh.prefill(sequence));
  EXPECT_TRUE(logits() == sequence.logits.at(0));
}

TEST_F(LlamaWeightsTest, NothingHalfDoneOnABadTensor) {
  const DigestIdentity before = digest();
  SetTensors update = perturbed();
  update.tensors.emplace_back("blk.3.no_such.weight", Bytes(8));
  EXPECT_THAT(refusal(update), HasSubstr("no tensor blk.3.no_such.weight"));
  update = perturbed();
  update.tensors.emplace_back("output_norm.weight", Bytes(8));
  EXPECT_THAT(refusal(update), HasSubstr("output_norm.weight takes 2304 bytes, not 8"));
  EXPECT_EQ(digest(), before);
}

TEST_F(LlamaWeightsTest, RefusesOtherModelsAndKeepsTheOldWeights) {
  const DigestIdentity before = digest();
  EXPECT_THAT(refusal(LoadGguf{test_model("f16")}), HasSubstr("start an engine with it instead"));
  EXPECT_THAT(refusal(LoadGguf{test_model("adapter")}), HasSubstr("lora_a"));
  const Status missing = runner().update_weights(LoadGguf{"/nowhere.gguf"});
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("/nowhere.gguf"));

  const std::string cut = ::testing::TempDir() + "llama_weights_test_cut.gguf";
  std::filesystem::copy_file(test_model("other"), cut,
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 1000);
  EXPECT_THAT(refusal(LoadGguf{cut}), HasSubstr("ends within tensor"));
  std::filesystem::remove(cut);
  EXPECT_EQ(digest(), before);
}

// A file with the same tensors but, say, another rope base computes other KV.
TEST_F(LlamaWeightsTest, RefusesOtherFigures) {
  std::string bytes(std::filesystem::file_size(test_model("other")), '\0');
  std::ifstream(test_model("other"), std::ios::binary)
      .read(bytes.data(), static_cast<long>(bytes.size()));
  const std::string key = "llama.rope.freq_base";
  const std::size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  bytes[at + key.size() + 4 + 2] ^= 0x08;  // behind the key: u32 type, then the f32
  const std::string path = ::testing::TempDir() + "llama_weights_test_rope.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_THAT(refusal(LoadGguf{path}), HasSubstr("figures"));
  std::filesystem::remove(path);
}

TEST_F(LlamaWeightsTest, AdapterOnAndOff) {
  const DigestIdentity base = digest();
  const std::vector<float> base_logits = logits();
  ASSERT_TRUE(runner().update_weights(SetLora{.path = test_model("adapter"), .scale = 1.0f}));
  const DigestIdentity whole = digest();
  EXPECT_NE(whole, base);
  EXPECT_TRUE(logits() != base_logits);

  ASSERT_TRUE(runner().update_weights(SetLora{.path = test_model("adapter"), .scale = 0.5f}));
  EXPECT_NE(digest(), whole) << "another scale";
  ASSERT_TRUE(runner().update_weights(SetLora{.path = test_model("adapter"), .scale = 1.0f}));
  EXPECT_EQ(digest(), whole);
  ASSERT_TRUE(runner().update_weights(SetLora{.path = ""}));
  EXPECT_EQ(digest(), base);
  // Exact mode pads with an adapter only, so the comparison holds within base weights.
  EXPECT_TRUE(logits() == base_logits);
}

TEST_F(LlamaWeightsTest, ARefusedAdapterLeavesTheOldOneOn) {
  ASSERT_TRUE(runner().update_weights(SetLora{.path = test_model("adapter"), .scale = 1.0f}));
  const DigestIdentity before = digest();
  const std::vector<float> logits_before = logits();
  EXPECT_THAT(refusal(SetLora{.path = test_model("base"), .scale = 1.0f}),
              HasSubstr("is it for this model?"));
  EXPECT_THAT(refusal(SetLora{.path = test_model("adapter"), .scale = 0.0f}), HasSubstr("scale"));
  EXPECT_EQ(digest(), before);
  EXPECT_TRUE(logits() == logits_before);
}

TEST_F(LlamaWeightsTest, RunningStreamsKeepTheirKv) {
  TestSequence sequence = engine_.start(1, test_prompt(20), 64);
  ASSERT_TRUE(engine_.generate(sequence, 2));
  const Fragment block = engine_.arena().block(sequence.blocks[0]);
  const Bytes before(block.begin(), block.end());
  ASSERT_TRUE(runner().update_weights(SetLora{.path = test_model("adapter"), .scale = 1.0f}));
  ASSERT_TRUE(runner().update_weights(LoadGguf{test_model("other")}));
  ASSERT_TRUE(engine_.generate(sequence, 4)) << "goes on where it was";
  EXPECT_EQ(Bytes(block.begin(), block.end()), before) << "a full block is not written again";
}

TEST_F(LlamaWeightsTest, SleepAndWakeUp) {
  ASSERT_TRUE(runner().update_weights(SetLora{.path = test_model("adapter"), .scale = 1.0f}));
  const DigestIdentity in_force = digest();
  const std::vector<float> logits_before = logits();
  for (const int level : {1, 2}) {
    ASSERT_TRUE(runner().sleep(level));
    TestSequence sequence = engine_.start(0, test_prompt(20), 32);
    const Status asleep = engine_.prefill(sequence);
    ASSERT_FALSE(asleep);
    EXPECT_THAT(asleep.error().message, HasSubstr("asleep"));
    EXPECT_EQ(runner().weights_digest().has_value(), level == 1);
    ASSERT_TRUE(runner().wake_up());
    EXPECT_EQ(digest(), in_force);
    EXPECT_TRUE(logits() == logits_before);
  }
  EXPECT_FALSE(runner().sleep(3));
}

TEST_F(LlamaWeightsTest, DeepSleepForgetsWhatWasWrittenInPlace) {
  const DigestIdentity file = digest();
  ASSERT_TRUE(runner().update_weights(perturbed()));
  ASSERT_TRUE(runner().sleep(1));
  ASSERT_TRUE(runner().wake_up());
  EXPECT_NE(digest(), file);
  ASSERT_TRUE(runner().sleep(2));
  ASSERT_TRUE(runner().wake_up());
  EXPECT_EQ(digest(), file);
}

}  // namespace
}  // namespace newmoon
