#include "base/contain.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "base/executor.h"
#include "base/log.h"
#include "base/testing/failing_new.h"

namespace newmoon {
namespace {

TEST(Contain, WhatIsThrownBecomesAnError) {
  const Status memory = contain([] { throw std::bad_alloc(); });
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kBusy);
  const Status other = contain([] { throw std::runtime_error("planted"); });
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kInternal);
  EXPECT_EQ(other.error().message, "thrown: planted");
  EXPECT_FALSE(contain([] { throw 7; }));
}

TEST(Contain, WhatIsReturnedStays) {
  EXPECT_TRUE(contain([] {}));
  EXPECT_EQ(contain([]() -> Result<int> { return 3; }), 3);
  const auto refused = contain([]() -> Result<int> { return fail(Code::kMiss, "not there"); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kMiss);
}

TEST(Contain, NothingIsThrownThoughThereIsNoMemoryForTheText) {
  const std::runtime_error planted(std::string(1000, 'x'));
  const testing::NoMemoryFrom none(0);
  const Status contained = contain([&] { throw planted; });
  ErrorCounter counter("test");
  if (!contained) counter.add(contained.error());
  EXPECT_EQ(counter.count(), 1u);
}

TEST(ErrorCounter, LogsEachDoublingOnly) {
  int lines = 0;
  set_log_sink([&](LogLevel, std::string_view, std::string_view) { ++lines; });
  ErrorCounter counter("test");
  for (int i = 0; i < 100; ++i) counter.add({Code::kInternal, "again"});
  set_log_sink({});
  EXPECT_EQ(counter.count(), 100u);
  EXPECT_EQ(lines, 7);  // 1, 2, 4, ... 64
}

TEST(ThreadExecutor, ATaskThatThrowsDoesNotEndTheThread) {
  ThreadExecutor executor("throws");
  executor.post([] { throw std::bad_alloc(); });
  std::promise<void> ran;
  executor.post([&] { ran.set_value(); });
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

}  // namespace
}  // namespace newmoon
