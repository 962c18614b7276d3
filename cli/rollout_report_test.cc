#include <gtest/gtest.h>

#include "cli/rollout.h"

namespace newmoon {
namespace {

// Two cycles of a rolling run in which all is as it should be.
RolloutReport rolling_report() {
  RolloutReport report;
  report.rolling = true;
  report.verified = true;
  report.compared_requests = 40;
  CycleReport first;
  first.weights = "base";
  first.external_hit_tokens = 100;
  CycleReport second = first;
  second.weights = "norms";
  second.second_engine_external_hit_tokens = 16;
  second.two_identity_requests = 1;
  report.cycles = {first, second};
  return report;
}

TEST(RolloutReport, RollingRunPasses) { EXPECT_TRUE(rolling_report().pass()); }

TEST(RolloutReport, SecondEngineMustFindWhatTheFirstOneStored) {
  RolloutReport report = rolling_report();
  report.cycles[1].second_engine_external_hit_tokens = 0;
  EXPECT_FALSE(report.pass());
  report.hits_required = false;
  EXPECT_TRUE(report.pass());
}

TEST(RolloutReport, RollingUpdateMustHaveHadTwoIdentities) {
  RolloutReport report = rolling_report();
  report.cycles[1].two_identity_requests = 0;
  EXPECT_FALSE(report.pass());
  report.rolling = false;
  EXPECT_TRUE(report.pass());
}

TEST(RolloutReport, ReturnIsJudgedByTheEngineThatCameFirst) {
  RolloutReport report = rolling_report();
  report.cycles[1].weights = "base";
  report.cycles[1].first_use_external_hit_tokens = 16;  // the second engine's alone
  EXPECT_FALSE(report.pass());
  report.cycles[1].first_engine_external_hit_tokens = 16;
  EXPECT_TRUE(report.pass());
}

TEST(RolloutReport, ARunThatComparedNothingSaysSo) {
  RolloutReport report = rolling_report();
  EXPECT_EQ(to_json(report).at("verdict"), "pass");
  report.verified = false;
  report.compared_requests = 0;
  EXPECT_EQ(to_json(report).at("verdict"), "not verified");
}

TEST(RolloutReport, JsonHasWhatARollingUpdateShowed) {
  const nlohmann::json cycle = to_json(rolling_report()).at("cycles").at(1);
  EXPECT_EQ(cycle.at("second_engine_external_hit_tokens"), 16);
  EXPECT_EQ(cycle.at("two_identity_requests"), 1);
}

}  // namespace
}  // namespace newmoon
