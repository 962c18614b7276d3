#include "cli/rollout_run.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace newmoon {
namespace {

using Json = nlohmann::json;

class RolloutWorkloadTest : public testing::Test {
 protected:
  RolloutWorkloadTest() {
    options_.requests = 4;
    for (int i = 0; i < 40; ++i) prompts_.problems.push_back("problem " + std::to_string(i));
  }
  RolloutWorkload workload() const { return {options_, prompts_}; }

  RolloutOptions options_;
  PromptSet prompts_{.prefix = "prefix ", .problems = {}};
};

TEST_F(RolloutWorkloadTest, ReturnToWeightsAsksTheirProblemsAgain) {
  const Json base = workload().request(0, 1, "");
  EXPECT_EQ(workload().request(4, 1, "").at("prompt"), base.at("prompt"));
  EXPECT_NE(workload().request(1, 1, "").at("prompt"), base.at("prompt"));
}

TEST_F(RolloutWorkloadTest, FirstRequestSharesNoPrefixWithOthers) {
  const std::string first = workload().first_request(0, 1).at("prompt");
  const std::string usual = workload().request(0, 1, "").at("prompt");
  EXPECT_NE(first[0], usual[0]);
  EXPECT_TRUE(first.ends_with(usual));
}

TEST_F(RolloutWorkloadTest, IdsOfOneEngineDiffer) {
  std::set<std::string> ids;
  for (const Json& request : workload().in_flight_requests(1, 0)) ids.insert(request.at("id"));
  ids.insert(workload().first_request(1, 0).at("id"));
  ids.insert(workload().request(1, 0, "").at("id"));
  ids.insert(workload().request(1, 0, "-twin").at("id"));
  EXPECT_EQ(ids.size(), std::size_t{kInFlightPerEngine} + 3);
}

TEST(RolloutBooks, RowKeepsTheSlowestEngine) {
  CycleReport row;
  const ControlCall reset = weight_update_calls(row).at(2);
  note_control_reply(reset, {{"ms", 3.0}, {"steps_ms", {{"fence", 1.0}}}}, row);
  note_control_reply(reset, {{"ms", 2.0}, {"steps_ms", {{"fence", 2.0}}}}, row);
  EXPECT_EQ(row.reset_ms, 3.0);
  EXPECT_EQ(row.reset_steps_ms.at("fence"), 1.0);
}

TEST(RolloutBooks, OutputAcrossAnUpdateIsSplitByItsWeights) {
  RolloutReport report;
  CycleReport row;
  const Json output = {{"id", "r"},
                       {"prompt_token_ids", {1, 2}},
                       {"token_ids", {3, 4, 5}},
                       {"local_hit_tokens", 0},
                       {"external_hit_tokens", 0},
                       {"computed_tokens", 2},
                       {"weight_versions",
                        {{{"version", "base"}, {"start", 0}, {"end", 2}},
                         {{"version", "norms"}, {"start", 2}, {"end", 3}}}}};
  take_outputs({{"outputs", {output}}}, row, report);
  ASSERT_EQ(report.spans.size(), 2u);
  EXPECT_EQ(report.spans[0].context, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(report.spans[1].weights, "norms");
  EXPECT_EQ(report.spans[1].context, (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(report.spans[1].tokens, (std::vector<std::int32_t>{5}));
}

}  // namespace
}  // namespace newmoon
