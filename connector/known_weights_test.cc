#include "connector/known_weights.h"

#include <gtest/gtest.h>

namespace newmoon {
namespace {

using Writes = std::vector<std::uint64_t>;

const DigestIdentity kDigest{{7}};
const Writes kTwice = {2, 2};

KnownWeights labelled(const std::string& label, std::string_view name_space = "run 7") {
  KnownWeights weights(IdentityMode::kTrustedLabel, name_space);
  if (weights.set_label(label)) weights.bind_label(kTwice);
  return weights;
}

TEST(KnownWeightsTest, NothingIsKnownAtFirst) {
  const KnownWeights weights(IdentityMode::kTrustedLabel, "run 7");
  EXPECT_EQ(weights.identity_at(kTwice), std::nullopt);
  EXPECT_EQ(weights.label(), "");
}

TEST(KnownWeightsTest, ADigestNamesTheWeightsOfItsCounts) {
  KnownWeights weights(IdentityMode::kDigest, "");
  weights.set_digest(kDigest, kTwice);
  EXPECT_EQ(weights.identity_at(kTwice), WeightsIdentity(kDigest));
  EXPECT_EQ(weights.identity_at(Writes{3, 3}), std::nullopt);
  weights.forget();
  EXPECT_EQ(weights.identity_at(kTwice), std::nullopt);
}

TEST(KnownWeightsTest, NothingNamesTheWeightsOfRanksThatCountedDifferently) {
  const Writes unequal = {2, 3};
  KnownWeights weights(IdentityMode::kDigest, "");
  weights.set_digest(kDigest, unequal);
  EXPECT_EQ(weights.identity_at(unequal), std::nullopt);
  KnownWeights label(IdentityMode::kTrustedLabel, "run 7");
  label.set_label("step-1");
  label.bind_label(unequal);
  EXPECT_EQ(label.identity_at(unequal), std::nullopt);
}

TEST(KnownWeightsTest, ALabelNamesTheWeightsOfItsCounts) {
  KnownWeights weights = labelled("step-1");
  EXPECT_EQ(weights.identity_at(kTwice), WeightsIdentity(LabelIdentity{"step-1"}));
  EXPECT_EQ(weights.identity_at(Writes{3, 3}), std::nullopt);
}

TEST(KnownWeightsTest, ALabelCountsAgainOnlyIfItIsAnother) {
  KnownWeights weights = labelled("step-1");
  weights.forget();
  EXPECT_EQ(weights.label(), "step-1");
  EXPECT_FALSE(weights.set_label("step-1"));
  EXPECT_EQ(weights.identity_at(kTwice), std::nullopt);
  EXPECT_TRUE(weights.set_label("step-2"));
  EXPECT_EQ(weights.identity_at(kTwice), std::nullopt) << "of which weights?";
  weights.bind_label(kTwice);
  EXPECT_EQ(weights.identity_at(kTwice), WeightsIdentity(LabelIdentity{"step-2"}));
}

TEST(KnownWeightsTest, ALabelThatSaysNothingNamesNothing) {
  EXPECT_EQ(labelled("").identity_at(kTwice), std::nullopt);
  EXPECT_EQ(labelled("default").identity_at(kTwice), std::nullopt);
  EXPECT_EQ(labelled("step-1", "").identity_at(kTwice), std::nullopt);
  KnownWeights unique(IdentityMode::kUnique, "run 7");
  EXPECT_FALSE(unique.set_label("step-1"));
  EXPECT_EQ(unique.label(), "step-1");
  unique.bind_label(kTwice);
  EXPECT_EQ(unique.identity_at(kTwice), std::nullopt);
}

}  // namespace
}  // namespace newmoon
