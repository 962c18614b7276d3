#include "cli/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>

namespace newmoon {
namespace {

TEST(Statistics, MedianIsTheMiddleOfAnOddNumber) {
  EXPECT_EQ(median(std::array{5.0, 1.0, 9.0}), 5.0);
  EXPECT_EQ(median(std::vector{7.0}), 7.0);
}

TEST(Statistics, PercentileIsASampleAndNotBeyondTheLast) {
  const std::vector<std::chrono::nanoseconds> samples = {
      std::chrono::nanoseconds(40), std::chrono::nanoseconds(10), std::chrono::nanoseconds(30),
      std::chrono::nanoseconds(20)};
  EXPECT_EQ(percentile(samples, 0.0).count(), 10);
  EXPECT_EQ(percentile(samples, 0.5).count(), 20);
  EXPECT_EQ(percentile(samples, 0.99).count(), 30);
  EXPECT_EQ(percentile(samples, 1.0).count(), 40);
}

}  // namespace
}  // namespace newmoon
