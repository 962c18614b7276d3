#include "sim/runner.h"

#include <gtest/gtest.h>

#include <string>

#include "base/log.h"
#include "sim/plan.h"

namespace newmoon::sim {
namespace {

class RunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    // What a world does to its engines on purpose need not be read.
    set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  }
  void TearDown() override { set_log_sink(nullptr); }
};

std::string first_violation(const SimReport& report) {
  if (report.failed.empty()) return "";
  return "seed " + std::to_string(report.failed.front().seed) + ": " +
         report.failed.front().violations.front();
}

TEST_F(RunnerTest, NoSeedViolatesTheContract) {
  const SimReport report = run_seeds({.first = 1, .last = 80, .threads = 2});
  EXPECT_EQ(report.violations, 0u) << first_violation(report);
  EXPECT_EQ(report.seeds, 80u);
  EXPECT_GT(report.events / report.seeds, 50u);
}

TEST_F(RunnerTest, TheSameSeedHasTheSameHistory) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const SeedResult once = run_seed(seed, nullptr);
    const SeedResult again = run_seed(seed, nullptr);
    EXPECT_EQ(once.history_hash, again.history_hash) << seed;
    EXPECT_EQ(once.events, again.events) << seed;
    EXPECT_EQ(once.overlaps, again.overlaps) << seed;
  }
}

TEST_F(RunnerTest, TracingChangesNothing) {
  std::size_t lines = 0;
  const SeedResult traced = run_seed(3, [&](const std::string& line) { lines += !line.empty(); });
  EXPECT_EQ(traced.history_hash, run_seed(3, nullptr).history_hash);
  EXPECT_GT(lines, 50u);
}

TEST_F(RunnerTest, TheEndHashDoesNotDependOnThreads) {
  const SimReport alone = run_seeds({.first = 1, .last = 12, .threads = 1});
  const SimReport together = run_seeds({.first = 1, .last = 12, .threads = 3});
  EXPECT_EQ(alone.to_json(), together.to_json());
  EXPECT_NE(alone.end_hash, run_seeds({.first = 1, .last = 11, .threads = 1}).end_hash);
}

TEST_F(RunnerTest, WhatIsNeverCoveredIsNamedOnceThereAreEnoughSeeds) {
  SimReport report;
  report.seeds = kCoverageSeeds - 1;
  EXPECT_TRUE(report.missing_overlaps().empty());
  report.seeds = kCoverageSeeds;
  report.overlaps.fill(1);
  EXPECT_TRUE(report.missing_overlaps().empty());
  report.overlaps[static_cast<std::size_t>(Overlap::kLateRank)] = 0;
  EXPECT_EQ(report.missing_overlaps(), std::vector{Overlap::kLateRank});
}

TEST_F(RunnerTest, EverySeedHoldsEnough) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const SeedResult result = run_seed(seed, nullptr);
    EXPECT_GE(result.updates, 2u) << seed;
    EXPECT_GE(result.requests, 8u) << seed;
    EXPECT_GE(result.faults, 1u) << seed;
  }
}

}  // namespace
}  // namespace newmoon::sim
