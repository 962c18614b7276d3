#include "model/llama_runner.h"

#include <gmock/gmock.h>

#include <fstream>

#include "model/llama_test_engine.h"

namespace newmoon {
namespace {

using ::testing::HasSubstr;

LlamaOptions small_options(LlamaMode mode = LlamaMode::kExact) {
  return {.model_path = test_model("base"),
          .mode = mode,
          .threads = 1,
          .context_tokens_max = 256,
          .sequences_max = 3};
}

std::string load_error(LlamaOptions options) {
  const auto runner = LlamaRunner::load(std::move(options));
  return runner ? "" : to_string(runner.error());
}

std::string say(TestEngine& engine, const std::string& question, std::size_t count) {
  const auto tokenizer = *LlamaTokenizer::load(test_model("base"));
  const std::vector<ChatMessage> messages{{.role = "user", .content = question}};
  TestSequence sequence =
      engine.start(0, tokenizer->encode(*tokenizer->chat_prompt(messages), true), 128);
  const std::size_t prompt = sequence.tokens.size();
  EXPECT_TRUE(engine.generate(sequence, count));
  std::string text;
  for (std::size_t i = prompt; i < sequence.tokens.size(); ++i) {
    text += *tokenizer->decode(sequence.tokens[i], false);
  }
  return text;
}

TEST(LlamaRunnerTest, AnswersAQuestionInBothModes) {
  for (const LlamaMode mode : {LlamaMode::kExact, LlamaMode::kFast}) {
    TestEngine engine(small_options(mode));
    EXPECT_THAT(say(engine, "What is the capital of France?", 8), HasSubstr("Paris"));
  }
}

TEST(LlamaRunnerTest, DescribesTheModel) {
  TestEngine engine(small_options());
  const ModelInfo& info = engine.runner().info();
  EXPECT_EQ(info.vocab_size, 49152);
  EXPECT_EQ(info.layer_count, 30);
  EXPECT_EQ(info.context_tokens_max, 256);
  EXPECT_EQ(info.end_of_sequence, 2);
  EXPECT_EQ(engine.runner().kv_layout().block_bytes(), 30u * 192 * 2 * 2 * 16);
  EXPECT_THAT(info.layout, HasSubstr("exact"));
  EXPECT_NE(info.layout, TestEngine(small_options(LlamaMode::kFast)).runner().info().layout);
  LlamaOptions longer = small_options();
  longer.context_tokens_max += 256;
  EXPECT_NE(info.layout, TestEngine(longer).runner().info().layout);
}

TEST(LlamaRunnerTest, GoesOnFromImportedBlocks) {
  TestEngine engine(small_options());
  TestSequence cold = engine.start(0, test_prompt(100), 128);
  ASSERT_TRUE(engine.generate(cold, 5));
  for (const std::size_t hit : {16u, 64u, 96u}) {
    TestSequence warm = engine.start(2, test_prompt(100), 128, cold.blocks, hit);
    ASSERT_TRUE(engine.generate(warm, 5));
    EXPECT_EQ(warm.logits, cold.logits) << hit;
  }
}

TEST(LlamaRunnerTest, WritesEveryFullBlockAndNoOther) {
  TestEngine engine(small_options());
  TestSequence sequence = engine.start(1, test_prompt(47), 64);
  ASSERT_TRUE(engine.prefill(sequence));
  const auto written = [&](std::size_t i) {
    const Fragment block = engine.arena().block(sequence.blocks[i]);
    return std::ranges::any_of(block, [](std::uint8_t byte) { return byte != 0; });
  };
  EXPECT_TRUE(written(0));
  EXPECT_TRUE(written(1));
  EXPECT_FALSE(written(2)) << "holds 15 tokens of 16";
  ASSERT_TRUE(engine.generate(sequence, 2));
  EXPECT_TRUE(written(2));
  EXPECT_FALSE(written(3));
}

TEST(LlamaRunnerTest, ReadsTheBlocksItIsGiven) {
  TestEngine engine(small_options());
  TestSequence right = engine.start(0, test_prompt(40), 64);
  ASSERT_TRUE(engine.prefill(right));
  engine.arena().block(right.blocks[1])[77] ^= 0x40;
  TestSequence wrong = engine.start(1, test_prompt(40), 64, right.blocks, 32);
  ASSERT_TRUE(engine.prefill(wrong));
  EXPECT_NE(wrong.logits, right.logits);
}

TEST(LlamaRunnerTest, SamplesBySeedWhateverTheBatch) {
  TestEngine engine(small_options());
  const SamplingParams warm{.temperature = 1.0f, .seed = 5};
  TestSequence alone = engine.start(0, test_prompt(20), 64);
  alone.sampling = warm;
  ASSERT_TRUE(engine.generate(alone, 8));

  TestSequence batched = engine.start(1, test_prompt(20), 64);
  batched.sampling = warm;
  TestSequence mate = engine.start(2, test_prompt(30, 1), 64);
  while (batched.sampled < 8) {
    ASSERT_TRUE(engine.step({{&mate, mate.left()}, {&batched, batched.left()}}));
  }
  EXPECT_EQ(batched.tokens, alone.tokens);

  TestSequence other = engine.start(0, test_prompt(20), 64);
  other.sampling = {.temperature = 1.0f, .seed = 6};
  ASSERT_TRUE(engine.generate(other, 8));
  EXPECT_NE(other.tokens, alone.tokens);
}

TEST(LlamaRunnerTest, RunsToTheVeryEndOfTheContext) {
  TestEngine engine(small_options());
  TestSequence sequence = engine.start(0, test_prompt(254), 256);
  ASSERT_TRUE(engine.generate(sequence, 3));
  EXPECT_EQ(sequence.computed, 256u);
  const Status beyond = engine.step({{&sequence, 1}});
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, Code::kBadRequest);
  EXPECT_THAT(beyond.error().message, HasSubstr("257 tokens are more than the context of 256"));
}

TEST(LlamaRunnerTest, RefusesBadSteps) {
  TestEngine engine(small_options());
  TestSequence good = engine.start(0, test_prompt(20), 64);
  ASSERT_TRUE(engine.prefill(good));
  const auto refusal = [&](TestSequence sequence, std::size_t count = 1) {
    const Status status = engine.step({{&sequence, count}});
    if (status) return std::string("accepted");
    EXPECT_EQ(status.error().code, Code::kBadRequest);
    return status.error().message;
  };
  TestSequence bad = good;
  bad.slot = 3;
  EXPECT_THAT(refusal(bad), HasSubstr("there are 3 slots"));
  bad = good;
  bad.computed = 19;
  EXPECT_THAT(refusal(bad), HasSubstr("holds 20 tokens, not the 19"));
  bad.restart = true;
  EXPECT_THAT(refusal(bad), HasSubstr("middle of a block"));
  bad = good;
  bad.tokens.back() = 49152;
  EXPECT_THAT(refusal(bad), HasSubstr("vocabulary"));
  bad = good;
  bad.blocks.clear();
  EXPECT_THAT(refusal(bad), HasSubstr("too short"));
  bad = good;
  bad.blocks[0] = kNullBlock;
  EXPECT_THAT(refusal(bad), HasSubstr("block table is wrong"));
  EXPECT_THAT(refusal(good, 0), HasSubstr("no token"));
  TestSequence twin = good;
  EXPECT_FALSE(engine.step({{&good, 1}, {&twin, 1}}));
  EXPECT_TRUE(engine.step({{&good, 1}})) << "a refused step must not touch the slot";
}

TEST(LlamaRunnerTest, RefusesArenasOfAnotherLayout) {
  TestEngine engine(small_options());
  const auto arena = *KvArena::create({.k_layer_bytes = {64}, .v_layer_bytes = {64}}, 4);
  EXPECT_FALSE(engine.runner().attach(arena.get()));
}

TEST(LlamaRunnerTest, NamesWhatIsWrongWithAFile) {
  LlamaOptions options = small_options();
  options.model_path = "/nowhere/model.gguf";
  EXPECT_THAT(load_error(options), HasSubstr("/nowhere/model.gguf: no such file"));

  options.model_path = ::testing::TempDir() + "llama_runner_test_broken.gguf";
  std::ofstream(options.model_path) << "this is no model";
  EXPECT_THAT(load_error(options), HasSubstr("cannot load it (invalid magic"));

  Bytes head(1 << 22);
  std::ifstream(test_model("base"), std::ios::binary)
      .read(reinterpret_cast<char*>(head.data()), static_cast<long>(head.size()));
  std::ofstream(options.model_path, std::ios::binary) << as_text(head);
  EXPECT_THAT(load_error(options), HasSubstr("is the download complete?"));
  std::remove(options.model_path.c_str());
}

TEST(LlamaRunnerTest, NamesTheFigureThatDoesNotFit) {
  LlamaOptions options = small_options();
  options.context_tokens_max = 9000;
  EXPECT_THAT(load_error(options), HasSubstr("context of 9000 tokens: the model takes 16 to 8192"));
  options.context_tokens_max = 8192;
  options.sequences_max = 256;
  EXPECT_THAT(load_error(options), HasSubstr("KV of 256 sequences of 8192 tokens is 46"));
  options.sequences_max = 1000;
  EXPECT_THAT(load_error(options), HasSubstr("1 to 256 are possible"));
  options = small_options();
  options.threads = 2;
  EXPECT_THAT(load_error(options), HasSubstr("exact mode computes with 1 thread, not 2"));
}

}  // namespace
}  // namespace newmoon
