#include "base/ticker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace newmoon {
namespace {

TEST(Ticker, TicksAtOnceAndAgainThoughATickThrows) {
  std::atomic<int> ticks = 0;
  Ticker ticker("ticks", std::chrono::milliseconds(1), [&] {
    if (++ticks == 2) throw std::runtime_error("planted");
  });
  while (ticks < 5) std::this_thread::yield();
}

TEST(Ticker, EndsWithoutWaitingForTheNextTick) {
  std::atomic<int> ticks = 0;
  {
    Ticker ticker("ticks", std::chrono::hours(24), [&] { ++ticks; });
    while (ticks == 0) std::this_thread::yield();
  }
  EXPECT_EQ(ticks, 1);
}

}  // namespace
}  // namespace newmoon
