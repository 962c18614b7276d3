#include "store/circuit_breaker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/log.h"
#include "base/testing/out_of_memory.h"

namespace newmoon {
namespace {

using State = CircuitBreaker::State;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CircuitBreakerTest : public ::testing::Test {
 protected:
  CircuitBreakerTest() {
    set_log_sink(
        [this](LogLevel, std::string_view, std::string_view line) { lines_.emplace_back(line); });
  }
  ~CircuitBreakerTest() override { set_log_sink({}); }

  State state() const { return breaker_.figures().state; }
  // False: refused.
  bool call(const Status& outcome) {
    const auto admission = breaker_.admit(now_);
    if (admission) breaker_.note(*admission, now_, outcome);
    return admission.has_value();
  }
  void ping(const Status& outcome, Duration takes = Duration(0)) {
    breaker_.begin_ping(now_);
    now_ += takes;
    breaker_.end_ping(now_, outcome);
  }
  void open_by_calls() {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(call(kGone));
    ASSERT_EQ(state(), State::kOpen);
  }

  const Status kGone = fail(Code::kUnavailable, "gone");
  Time now_{seconds(1000)};
  std::vector<std::string> lines_;
  CircuitBreaker breaker_{"store X",
                          {.failures_max = 3,
                           .ping_timeout = seconds(2),
                           .retry_min = seconds(1),
                           .retry_max = seconds(4)}};
};

TEST_F(CircuitBreakerTest, OpensAfterFailuresInARowAndRefusesAtOnce) {
  EXPECT_TRUE(call(kGone));
  EXPECT_TRUE(call(fail(Code::kDeadline, "late")));
  EXPECT_TRUE(call({}));  // not in a row
  open_by_calls();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(call({}));
  EXPECT_EQ(breaker_.figures().opens, 1u);
  EXPECT_EQ(breaker_.figures().refused_calls, 5u);
}

TEST_F(CircuitBreakerTest, CallsThatTimeOutOpenIt) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(call(fail(Code::kDeadline, "late")));
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CircuitBreakerTest, WhileAllIsWellNothingChanges) {
  const auto early = breaker_.admit(now_);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(call({}));
  ping({});
  now_ += seconds(60);  // nobody pings
  EXPECT_TRUE(call({}));
  EXPECT_TRUE(call(kGone));
  EXPECT_TRUE(call(kGone));
  breaker_.note(*early, now_, kGone);  // the third in a row
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(CircuitBreakerTest, AnErrorThatIsAnAnswerDoesNotOpenIt) {
  for (const Code code : {Code::kMiss, Code::kBadRequest, Code::kBusy, Code::kCorrupt,
                          Code::kFenced, Code::kInternal}) {
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(call(fail(code, "answered")));
    ping(fail(code, "answered"));
  }
  EXPECT_EQ(state(), State::kClosed);
}

TEST_F(CircuitBreakerTest, OneFailedPingOpensIt) {
  ping(kGone);
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_FALSE(call({}));
}

TEST_F(CircuitBreakerTest, APingThatHangsOpensItWhileItHangs) {
  breaker_.begin_ping(now_);
  now_ += seconds(2);
  EXPECT_TRUE(call({}));
  now_ += seconds(1);
  EXPECT_FALSE(call({}));
  breaker_.end_ping(now_, {});  // answered, but too late to be called healthy
  EXPECT_EQ(state(), State::kOpen);
  ping({});
  EXPECT_EQ(state(), State::kHalfOpen);
}

TEST_F(CircuitBreakerTest, AnAnsweredTrialClosesIt) {
  ping(kGone);
  ping({});
  const auto trial = breaker_.admit(now_);
  ASSERT_TRUE(trial);
  EXPECT_FALSE(breaker_.admit(now_));  // one at a time
  breaker_.note(*trial, now_, fail(Code::kMiss, "an answer"));
  EXPECT_EQ(state(), State::kClosed);
  EXPECT_TRUE(call({}));
}

TEST_F(CircuitBreakerTest, ABackendThatAnswersPingsOnlyIsTriedLessAndLess) {
  open_by_calls();
  std::vector<int> trials;  // seconds since it opened
  for (int second = 0; second < 16; ++second) {
    ping({});
    if (call(kGone)) trials.push_back(second);
    now_ += seconds(1);
  }
  EXPECT_THAT(trials, ElementsAre(1, 3, 7, 11, 15));
}

// Pings go on while the trial is under way, and know better.
TEST_F(CircuitBreakerTest, AFailedPingEndsATrial) {
  ping(kGone);
  ping({});
  const auto trial = breaker_.admit(now_);
  ASSERT_TRUE(trial);
  ping(kGone);
  EXPECT_EQ(state(), State::kOpen);
  breaker_.note(*trial, now_, {});
  EXPECT_EQ(state(), State::kOpen);
  ping({});
  EXPECT_TRUE(call({}));  // another trial, whatever became of the first
  EXPECT_EQ(state(), State::kClosed);
  EXPECT_EQ(breaker_.figures().opens, 1u);
}

TEST_F(CircuitBreakerTest, APingThatHangsAllowsNoTrial) {
  ping(kGone);
  ping({});
  ASSERT_EQ(state(), State::kHalfOpen);
  breaker_.begin_ping(now_);
  now_ += seconds(3);
  EXPECT_FALSE(call({}));
  EXPECT_EQ(state(), State::kOpen);
}

TEST_F(CircuitBreakerTest, AfterItClosedItOpensAsBefore) {
  open_by_calls();
  now_ += seconds(1);
  ping({});
  ASSERT_FALSE(call(kGone) && state() == State::kClosed);
  now_ += seconds(2);  // twice as long, after a trial that failed
  ping({});
  ASSERT_TRUE(call({}));
  ASSERT_EQ(state(), State::kClosed);
  EXPECT_TRUE(call(kGone));
  EXPECT_TRUE(call(kGone));
  EXPECT_EQ(state(), State::kClosed);  // three in a row, again
  EXPECT_TRUE(call(kGone));
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(breaker_.figures().opens, 2u);
  now_ += seconds(1);  // and the first trial comes as soon as the first time
  ping({});
  EXPECT_EQ(state(), State::kHalfOpen);
}

TEST_F(CircuitBreakerTest, EachOutageBeginsWithTheShortestWait) {
  open_by_calls();
  for (int i = 0; i < 3; ++i) {  // until trials are four seconds apart
    now_ += seconds(4);
    ping({});
    ASSERT_TRUE(call(i < 2 ? kGone : Status()));
  }
  ping(kGone);
  ping({});
  ASSERT_TRUE(call(kGone));
  EXPECT_EQ(state(), State::kOpen);
  now_ += seconds(2);
  ping({});
  EXPECT_EQ(state(), State::kHalfOpen);
}

TEST_F(CircuitBreakerTest, AFailedPingDoesNotPutOffTheTrial) {
  open_by_calls();
  for (int i = 0; i < 10; ++i) ping(kGone);
  ping({});
  EXPECT_EQ(state(), State::kOpen);  // nor does it hasten it
  now_ += seconds(1);
  ping({});
  EXPECT_EQ(state(), State::kHalfOpen);
}

TEST_F(CircuitBreakerTest, AnAnswerFromBeforeAChangeCountsForNothing) {
  const auto slow = breaker_.admit(now_);
  const auto slower = breaker_.admit(now_);
  ping(kGone);
  breaker_.note(*slow, now_, {});
  EXPECT_EQ(state(), State::kOpen);
  ping({});
  breaker_.note(*slower, now_, kGone);
  EXPECT_EQ(state(), State::kHalfOpen);
}

TEST_F(CircuitBreakerTest, LogsOneLineAsItIsGivenUpAndOneAsItIsBack) {
  open_by_calls();
  for (int i = 0; i < 100; ++i) call({});
  for (int i = 0; i < 10; ++i) {
    now_ += seconds(5);
    ping(i == 9 ? Status() : kGone);
    if (i < 9) ping(kGone);
  }
  EXPECT_TRUE(call({}));
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_THAT(lines_[0], HasSubstr("store X is left alone"));
  EXPECT_THAT(lines_[0], HasSubstr("gone"));
  EXPECT_THAT(lines_[1], HasSubstr("store X answers again, after 50.0 s and 100 calls"));
}

TEST_F(CircuitBreakerTest, WithoutMemoryItKnowsWhatItWasToldAndLogsNothing) {
  {
    const testing::NoMemoryFrom none(0);
    open_by_calls();
  }
  EXPECT_THAT(lines_, ::testing::IsEmpty());
  now_ += seconds(1);
  ping({});
  ASSERT_EQ(state(), State::kHalfOpen);
  {
    const testing::NoMemoryFrom none(0);
    EXPECT_TRUE(call({}));
  }
  EXPECT_EQ(state(), State::kClosed);
  EXPECT_THAT(lines_, ::testing::IsEmpty());
}

}  // namespace
}  // namespace newmoon
