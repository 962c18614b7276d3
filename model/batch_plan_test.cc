#include "model/batch_plan.h"

#include <gmock/gmock.h>

#include <map>
#include <vector>

namespace newmoon {
namespace {

using ::testing::ElementsAre;

struct Share {
  int slot;
  std::size_t tokens;
};

StepInput step_of(const std::vector<Share>& shares) {
  StepInput input;
  for (const Share& share : shares) {
    SequenceStep step;
    step.slot = share.slot;
    step.tokens.resize(share.tokens);
    input.sequences.push_back(step);
  }
  return input;
}

// Slots of each call's parts.
std::vector<std::vector<int>> slots(const StepInput& input, const std::vector<ModelCall>& calls) {
  std::vector<std::vector<int>> all;
  for (const ModelCall& call : calls) {
    all.emplace_back();
    for (const ModelCall::Part& part : call.parts) {
      all.back().push_back(input.sequences[part.sequence].slot);
    }
  }
  return all;
}

TEST(BatchPlanTest, BatchesSinglesOfAdjacentSlots) {
  const StepInput input = step_of({{5, 1}, {2, 1}, {0, 1}, {1, 1}});
  EXPECT_THAT(slots(input, plan_calls(input, 32)),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(5)));
}

TEST(BatchPlanTest, CutsBatchesThatAreTooLarge) {
  const StepInput input = step_of({{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}});
  EXPECT_THAT(slots(input, plan_calls(input, 2)),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

TEST(BatchPlanTest, KeepsPrefillsApartAndCutsThemEvenly) {
  const StepInput input = step_of({{0, 1}, {1, 33}, {2, 1}});
  const std::vector<ModelCall> calls = plan_calls(input, 32);
  EXPECT_THAT(slots(input, calls),
              ElementsAre(ElementsAre(1), ElementsAre(1), ElementsAre(0), ElementsAre(2)));
  EXPECT_EQ(calls[0].tokens_each, 16u);
  EXPECT_EQ(calls[1].tokens_each, 17u);
  EXPECT_EQ(calls[1].parts[0].first_token, 16u);
}

TEST(BatchPlanTest, EveryTokenOnceAndInOrder) {
  for (std::size_t rows_max : {1u, 2u, 7u, 32u}) {
    std::vector<Share> shares;
    for (int slot = 0; slot < 12; ++slot) {
      shares.push_back({slot, 1 + static_cast<std::size_t>(slot * slot % 45)});
    }
    const StepInput input = step_of(shares);
    std::map<std::size_t, std::size_t> next;
    for (const ModelCall& call : plan_calls(input, rows_max)) {
      EXPECT_LE(call.rows(), rows_max);
      for (const ModelCall::Part& part : call.parts) {
        EXPECT_EQ(part.first_token, next[part.sequence]);
        next[part.sequence] += call.tokens_each;
      }
    }
    for (std::size_t i = 0; i < shares.size(); ++i) EXPECT_EQ(next[i], shares[i].tokens);
  }
}

TEST(BatchPlanTest, NothingForAnEmptyStep) { EXPECT_TRUE(plan_calls({}, 32).empty()); }

}  // namespace
}  // namespace newmoon
