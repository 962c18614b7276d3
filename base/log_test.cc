#include "base/log.h"

#include <gtest/gtest.h>

namespace newmoon {
namespace {

std::string line_of(const std::string& message) {
  ::testing::internal::CaptureStderr();
  log(LogLevel::kWarning, "store", message);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, ALineSaysWhatThePrefixSays) {
  EXPECT_EQ(line_of("gone"), "warning store: gone\n");
  set_log_prefix("newmoon: ");
  EXPECT_EQ(line_of("gone"), "newmoon: warning store: gone\n");
  EXPECT_EQ(line_of(std::string(301, 'x')),
            "newmoon: warning store: " + std::string(300, 'x') + " ...\n");
  set_log_prefix("");
}

}  // namespace
}  // namespace newmoon
