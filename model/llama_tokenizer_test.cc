#include "model/llama_tokenizer.h"

#include <gmock/gmock.h>

#include "model/llama_test_engine.h"

namespace newmoon {
namespace {

using ::testing::HasSubstr;

class LlamaTokenizerTest : public ::testing::Test {
 protected:
  std::string decoded(const std::vector<Token>& tokens, bool special) {
    std::string text;
    for (const Token token : tokens) text += *tokenizer_->decode(token, special);
    return text;
  }
  const std::unique_ptr<LlamaTokenizer> tokenizer_ = *LlamaTokenizer::load(test_model("base"));
};

TEST_F(LlamaTokenizerTest, RoundTrips) {
  const std::string text = "Grüße, 你好: def f(x):\n\treturn x ** 2  # 🙂\n";
  EXPECT_EQ(decoded(tokenizer_->encode(text, false), false), text);
  EXPECT_TRUE(tokenizer_->encode("", false).empty());
}

TEST_F(LlamaTokenizerTest, SpecialTokensOnlyWhereAllowed) {
  const std::string text = "<|im_end|>";
  EXPECT_EQ(tokenizer_->encode(text, true), std::vector<Token>{2});
  const std::vector<Token> as_text = tokenizer_->encode(text, false);
  EXPECT_GT(as_text.size(), 1u);
  EXPECT_EQ(decoded(as_text, false), text);
  EXPECT_EQ(*tokenizer_->decode(2, true), text);
  EXPECT_EQ(*tokenizer_->decode(2, false), "");
}

TEST_F(LlamaTokenizerTest, KnowsTheEnds) {
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
  EXPECT_EQ(tokenizer_->end_of_sequence(), 2);
  EXPECT_TRUE(tokenizer_->ends_generation(2));
  EXPECT_FALSE(tokenizer_->ends_generation(1));
}

TEST_F(LlamaTokenizerTest, WritesTheChatTemplate) {
  const std::vector<ChatMessage> messages{{"system", "Be brief."}, {"user", "Hi"}};
  EXPECT_EQ(*tokenizer_->chat_prompt(messages),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  const std::string longer(5000, 'x');
  const std::vector<ChatMessage> many(300, {.role = "user", .content = longer});
  EXPECT_THAT(*tokenizer_->chat_prompt(many), HasSubstr(longer));
}

TEST_F(LlamaTokenizerTest, RefusesTokensAndFilesThatAreNone) {
  EXPECT_FALSE(tokenizer_->decode(-1, false));
  EXPECT_THAT(tokenizer_->decode(49152, false).error().message,
              HasSubstr("49152 is not in the vocabulary"));
  const auto missing = LlamaTokenizer::load("/nowhere.gguf");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace newmoon
