#include "store/mooncake/call_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <new>
#include <semaphore>

#include "base/log.h"

namespace newmoon {
namespace {

using std::chrono::milliseconds;

class CallPoolTest : public ::testing::Test {
 protected:
  Time in(Duration duration) const { return clock_.now() + duration; }
  Time later() const { return in(std::chrono::seconds(30)); }

  SystemClock clock_;
  std::binary_semaphore go_{0};
};

TEST_F(CallPoolTest, RunsACallAndTellsWhenItIsDone) {
  CallPool pool(1, "test", clock_);
  std::atomic<bool> ran{false};
  EXPECT_TRUE(pool.start([&] { ran = true; })->wait(later()));
  EXPECT_TRUE(ran);
}

TEST_F(CallPoolTest, WhatACallHoldsLivesUntilItEndsAndNoLonger) {
  CallPool pool(1, "test", clock_);
  const auto held = std::make_shared<int>(7);
  std::binary_semaphore begun{0};
  const auto call = pool.start([&, held] {
    begun.release();
    go_.acquire();
  });
  begun.acquire();
  EXPECT_FALSE(call->wait(in(milliseconds(1))));
  EXPECT_EQ(held.use_count(), 2);
  go_.release();
  EXPECT_TRUE(call->wait(later()));
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(CallPoolTest, ACallThatNobodyWaitsForAnyMoreIsNotBegun) {
  CallPool pool(1, "test", clock_);
  const auto busy = pool.start([&] { go_.acquire(); });
  std::atomic<bool> ran{false};
  EXPECT_FALSE(pool.start([&] { ran = true; })->wait(in(milliseconds(1))));
  go_.release();
  EXPECT_TRUE(pool.start([] {})->wait(later()));  // behind it in the queue
  EXPECT_FALSE(ran);
}

TEST_F(CallPoolTest, ARousedWorkerRunsWhatComesAndSleepsAgain) {
  CallPool pool(1, "test", clock_);
  pool.rouse();
  EXPECT_TRUE(pool.start([] {})->wait(later()));
  pool.rouse();
  clock_.sleep_until(in(milliseconds(5)));  // in vain
  EXPECT_TRUE(pool.start([] {})->wait(later()));
  pool.rouse();
  EXPECT_TRUE(pool.stop(later()));
}

TEST_F(CallPoolTest, WhoStaysAwakeHearsTheSame) {
  set_log_sink([](auto...) {});
  constexpr Duration kAwake = std::chrono::hours(1);
  CallPool pool(1, "test", clock_);
  const auto held = std::make_shared<int>(7);
  EXPECT_TRUE(pool.start([held] {})->wait(later(), kAwake));
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(pool.start([] { throw std::bad_alloc(); })->wait(later(), kAwake));
  const auto busy = pool.start([&] { go_.acquire(); });
  std::atomic<bool> ran{false};
  EXPECT_FALSE(pool.start([&] { ran = true; })->wait(in(milliseconds(1)), kAwake));
  // Asleep by the time.
  EXPECT_FALSE(busy->wait(in(milliseconds(5)), milliseconds(1)));
  go_.release();
  EXPECT_TRUE(busy->wait(later(), kAwake));
  EXPECT_TRUE(pool.start([] {})->wait(later()));
  EXPECT_FALSE(ran);
  set_log_sink({});
}

TEST_F(CallPoolTest, CancelledBeforeItBeginsACallNeverDoes) {
  CallPool pool(1, "test", clock_);
  const auto busy = pool.start([&] { go_.acquire(); });
  std::atomic<bool> ran{false};
  pool.start([&] { ran = true; })->cancel();
  go_.release();
  EXPECT_TRUE(pool.start([] {})->wait(later()));
  EXPECT_FALSE(ran);
}

TEST_F(CallPoolTest, CancelledWhileItRunsACallIsDoneWhenCancelReturns) {
  CallPool pool(2, "test", clock_);
  std::atomic<bool> ended{false};
  std::binary_semaphore begun{0};
  const auto call = pool.start([&] {
    begun.release();
    go_.acquire();
    ended = true;
  });
  begun.acquire();
  pool.start([&] { go_.release(); });
  call->cancel();
  EXPECT_TRUE(ended);
}

TEST_F(CallPoolTest, StopWaitsForWhatRuns) {
  CallPool pool(2, "test", clock_);
  const auto held = std::make_shared<int>(7);
  std::binary_semaphore begun{0};
  pool.start([&, held] {
    begun.release();
    go_.acquire();
  });
  begun.acquire();
  EXPECT_FALSE(pool.stop(in(milliseconds(5))));
  go_.release();
  EXPECT_TRUE(pool.stop(later()));
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(CallPoolTest, WorkersLeaveSignalsToTheProgram) {
  CallPool pool(1, "test", clock_);
  sigset_t blocked;
  ASSERT_TRUE(pool.start([&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); })->wait(later()));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    EXPECT_TRUE(sigismember(&blocked, signal)) << signal;
  }
  EXPECT_FALSE(sigismember(&blocked, SIGSEGV));
}

TEST_F(CallPoolTest, ACallThatThrowsIsNotDoneAndItsWorkerGoesOn) {
  set_log_sink([](auto...) {});
  CallPool pool(1, "test", clock_);
  const auto held = std::make_shared<int>(7);
  const auto thrown = pool.start([held] { throw std::bad_alloc(); });
  EXPECT_FALSE(thrown->wait(later()));
  EXPECT_EQ(held.use_count(), 1);
  thrown->cancel();
  EXPECT_TRUE(pool.start([] {})->wait(later()));
  set_log_sink({});
}

}  // namespace
}  // namespace newmoon
