#include "model/sampler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace newmoon {
namespace {

using ::testing::ElementsAre;

// Probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1.
std::vector<float> logits() {
  return {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
}

// Which tokens come out, and how often, over `count` sample indices.
std::map<Token, int> drawn(const SamplingParams& params, int count = 4000) {
  std::map<Token, int> counts;
  for (int i = 0; i < count; ++i) ++counts[sample(logits(), params, i).token];
  return counts;
}
std::set<Token> support(const SamplingParams& params) {
  std::set<Token> tokens;
  for (const auto& [token, count] : drawn(params)) tokens.insert(token);
  return tokens;
}

TEST(SamplerTest, GreedyTakesTheLowestIdOfTheBest) {
  const std::vector<float> ties{0.5f, 2.0f, 2.0f, -1.0f};
  EXPECT_EQ(sample(ties, {}, 0).token, 1);
  EXPECT_EQ(sample(ties, {.seed = 99}, 7).token, 1);
}

TEST(SamplerTest, IsAFunctionOfSeedAndIndex) {
  const SamplingParams params{.temperature = 1.0f, .seed = 3};
  int same_as_other_seed = 0;
  for (int i = 0; i < 200; ++i) {
    const Token token = sample(logits(), params, i).token;
    EXPECT_EQ(sample(logits(), params, i).token, token);
    same_as_other_seed += sample(logits(), {.temperature = 1.0f, .seed = 4}, i).token == token;
  }
  EXPECT_LT(same_as_other_seed, 120);
  EXPECT_NE(uniform_of(0, 1), uniform_of(1, 0));
}

TEST(SamplerTest, DrawsByProbability) {
  const std::map<Token, int> counts = drawn({.temperature = 1.0f});
  EXPECT_NEAR(counts.at(0), 400, 90);
  EXPECT_NEAR(counts.at(1), 1600, 150);
  EXPECT_NEAR(counts.at(2), 800, 120);
  EXPECT_NEAR(counts.at(3), 1200, 140);
}

TEST(SamplerTest, TemperatureSharpens) {
  // Probabilities go with the square: 1, 16, 4, 9 of 30.
  const std::map<Token, int> counts = drawn({.temperature = 0.5f});
  EXPECT_NEAR(counts.at(1), 4000 * 16 / 30, 150);
  EXPECT_NEAR(counts.at(0), 4000 * 1 / 30, 60);
}

TEST(SamplerTest, TopKKeepsTheBest) {
  EXPECT_THAT(support({.temperature = 1.0f, .top_k = 1}), ElementsAre(1));
  EXPECT_THAT(support({.temperature = 1.0f, .top_k = 2}), ElementsAre(1, 3));
  EXPECT_THAT(support({.temperature = 1.0f, .top_k = 99}), ElementsAre(0, 1, 2, 3));
}

TEST(SamplerTest, TopPKeepsTheSmallestSetThatHoldsIt) {
  EXPECT_THAT(support({.temperature = 1.0f, .top_p = 0.0f}), ElementsAre(1));
  EXPECT_THAT(support({.temperature = 1.0f, .top_p = 0.39f}), ElementsAre(1));
  EXPECT_THAT(support({.temperature = 1.0f, .top_p = 0.5f}), ElementsAre(1, 3));
  EXPECT_THAT(support({.temperature = 1.0f, .top_p = 0.95f}), ElementsAre(0, 1, 2, 3));
  // Of the two that top_k leaves, 4/7 and 3/7.
  EXPECT_THAT(support({.temperature = 1.0f, .top_k = 2, .top_p = 0.55f}), ElementsAre(1));
}

TEST(SamplerTest, TopPSortsAsFarAsItMust) {
  const std::vector<float> flat(1000, 0.25f);
  std::set<Token> tokens;
  for (int i = 0; i < 8000; ++i) {
    tokens.insert(sample(flat, {.temperature = 1.0f, .top_p = 0.25f}, i).token);
  }
  EXPECT_EQ(tokens.size(), 250u);
  EXPECT_EQ(*tokens.rbegin(), 249) << "equals rank by id";
}

TEST(SamplerTest, LogprobsAreOfTheLogitsAsTheyAre) {
  const SampledToken sampled = sample(logits(), {.temperature = 0.01f, .logprobs = 2}, 0);
  ASSERT_TRUE(sampled.logprob);
  EXPECT_EQ(sampled.logprob->token, 1);
  EXPECT_EQ(sampled.logprob->rank, 1);
  EXPECT_NEAR(sampled.logprob->logprob, std::log(0.4), 1e-6);
  ASSERT_EQ(sampled.top_logprobs.size(), 2u);
  EXPECT_EQ(sampled.top_logprobs[1].token, 3);
  EXPECT_EQ(sampled.top_logprobs[1].rank, 2);
  EXPECT_NEAR(sampled.top_logprobs[1].logprob, std::log(0.3), 1e-6);
}

TEST(SamplerTest, LogprobsOnlyWhenAsked) {
  EXPECT_FALSE(sample(logits(), {}, 0).logprob);
  const SampledToken only_own = sample(logits(), {.logprobs = 0}, 0);
  EXPECT_TRUE(only_own.logprob);
  EXPECT_TRUE(only_own.top_logprobs.empty());
  EXPECT_EQ(sample(logits(), {.logprobs = 9}, 0).top_logprobs.size(), 4u);
}

TEST(SamplerTest, RankCountsTheBetterOnes) {
  for (int i = 0; i < 50; ++i) {
    const SampledToken sampled = sample(logits(), {.temperature = 1.0f, .logprobs = 0}, i);
    const int rank_by_token[] = {4, 1, 3, 2};
    EXPECT_EQ(sampled.logprob->rank, rank_by_token[sampled.token]);
  }
}

TEST(SamplerTest, NansNeverWin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> broken{nan, -3.0f, nan, -4.0f};
  EXPECT_EQ(sample(broken, {}, 0).token, 1);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(sample(broken, {.temperature = 1.0f, .top_p = 0.9f}, i).token % 2, 1);
  }
  const std::vector<float> all_broken(4, nan);
  EXPECT_EQ(sample(all_broken, {.temperature = 1.0f, .logprobs = 1}, 0).token, 0);
}

}  // namespace
}  // namespace newmoon
