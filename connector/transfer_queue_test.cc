#include "connector/transfer_queue.h"

#include <gmock/gmock.h>

#include <new>
#include <string>
#include <utility>

#include "base/testing/failing_new.h"
#include "base/testing/out_of_memory.h"
#include "connector/testing/manual_executor.h"

namespace newmoon {
namespace {

using newmoon::testing::ManualExecutor;
using newmoon::testing::NoMemoryFrom;
using ::testing::ElementsAre;

class TransferQueueTest : public ::testing::Test {
 protected:
  ManualExecutor executor_;
  std::vector<std::string> log_;
  TransferQueue<int> queue_{executor_, 3, 10,
                            [this](std::span<const int> jobs) { log_.push_back(text_of(jobs)); }};

  static std::string text_of(std::span<const int> jobs) {
    std::string text;
    for (const int job : jobs) text += (text.empty() ? "" : "+") + std::to_string(job);
    return text;
  }

  std::function<void()> note(const std::string& what) {
    return [this, what] { log_.push_back(what); };
  }
};

TEST_F(TransferQueueTest, RunsInOrderOneTaskAtATime) {
  for (int job : {1, 2, 3}) EXPECT_FALSE(queue_.push(job));
  EXPECT_EQ(executor_.size(), 1u);
  EXPECT_TRUE(executor_.run_one());
  EXPECT_THAT(log_, ElementsAre("1"));
  executor_.run_all();
  EXPECT_THAT(log_, ElementsAre("1", "2", "3"));
}

TEST_F(TransferQueueTest, HandsBackWhatDoesNotFit) {
  for (int job : {1, 2, 3}) EXPECT_FALSE(queue_.push(job));
  EXPECT_EQ(queue_.push(4), 4);
  executor_.run_one();
  EXPECT_FALSE(queue_.push(5));
}

TEST_F(TransferQueueTest, TakesBackQueuedJobsAndLeavesNothingInTheExecutor) {
  for (int round = 0; round < 1000; ++round) {
    for (int job : {1, 2, 3}) EXPECT_FALSE(queue_.push(job));
    EXPECT_THAT(queue_.take_if([](int job) { return job != 2; }), ElementsAre(1, 3));
    EXPECT_THAT(queue_.take_if([](int) { return true; }), ElementsAre(2));
  }
  EXPECT_EQ(executor_.size(), 1u);
  executor_.run_all();
  EXPECT_TRUE(log_.empty());
}

TEST_F(TransferQueueTest, TheRunningJobIsNotTakenBack) {
  std::vector<int> taken;
  TransferQueue<int> queue(executor_, 3, 10, [&](std::span<const int>) {
    taken = queue.take_if([](int) { return true; });
  });
  queue.push(1);
  queue.push(2);
  executor_.run_all();
  EXPECT_THAT(taken, ElementsAre(2));
}

TEST_F(TransferQueueTest, JobsRunTogetherUpToAWeightAndAMark) {
  TransferQueue<int> queue(
      executor_, 10, 10, [this](std::span<const int> jobs) { log_.push_back(text_of(jobs)); },
      [](int job) { return static_cast<std::size_t>(job); }, 5);
  for (int job : {1, 3, 2, 3}) queue.push(job);
  queue.mark(note("mark"));
  for (int job : {1, 9, 1}) queue.push(job);
  EXPECT_EQ(queue.size(), 7u);
  executor_.run_one();
  EXPECT_EQ(queue.size(), 5u);
  executor_.run_all();
  EXPECT_THAT(log_, ElementsAre("1+3", "2+3", "mark", "1", "9", "1"));
}

TEST_F(TransferQueueTest, ARunThatThrowsIsNotTheLast) {
  bool throws = true;
  TransferQueue<int> queue(executor_, 3, 10, [&](std::span<const int> jobs) {
    if (std::exchange(throws, false)) throw std::bad_alloc();
    log_.push_back(text_of(jobs));
  });
  queue.push(1);
  queue.push(2);
  executor_.run_all();
  EXPECT_THAT(log_, ElementsAre("2"));
}

TEST_F(TransferQueueTest, WhatCannotBePostedRunsWithTheNextOrWhenAsked) {
  struct FullExecutor final : Executor {
    void post(std::function<void()> task) override {
      if (std::exchange(full, false)) throw std::bad_alloc();
      task();
    }
    bool full = true;
  } executor;
  TransferQueue<int> queue(executor, 3, 10,
                           [this](std::span<const int> jobs) { log_.push_back(text_of(jobs)); });
  EXPECT_FALSE(queue.push(1));
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_FALSE(queue.push(2));
  EXPECT_THAT(log_, ElementsAre("1", "2"));
  executor.full = true;
  EXPECT_FALSE(queue.push(3));
  EXPECT_EQ(queue.size(), 1u);
  queue.pump();
  EXPECT_THAT(log_, ElementsAre("1", "2", "3"));
}

// Else a load whose blocks are lost would be reported as whole.
TEST_F(TransferQueueTest, TakingBackWithoutMemoryLeavesEveryJobWhole) {
  using Job = std::vector<int>;
  TransferQueue<Job> queue(executor_, 40, 10, [this](std::span<const Job> jobs) {
    log_.push_back(text_of(jobs.front()));
  });
  for (int job = 0; job < 40; ++job) EXPECT_FALSE(queue.push({job, job}));
  {
    const NoMemoryFrom limit(30 * sizeof(Job));
    EXPECT_THROW(queue.take_if([](const Job&) { return true; }), std::bad_alloc);
  }
  EXPECT_EQ(queue.size(), 40u);
  executor_.run_all();
  ASSERT_EQ(log_.size(), 40u);
  EXPECT_EQ(log_.front(), "0+0");
  EXPECT_EQ(log_.back(), "39+39");
}

TEST_F(TransferQueueTest, APushWithoutMemoryLeavesNothingBehind) {
  TransferQueue<int> queue(executor_, 100, 1, [](std::span<const int>) {});
  std::size_t pushed = 0;
  {
    const NoMemoryFrom limit(256);
    EXPECT_THROW(for (; pushed < 100; ++pushed) queue.push(1), std::bad_alloc);
  }
  EXPECT_EQ(queue.size(), pushed);
  executor_.run_all();
  EXPECT_TRUE(queue.mark(note("mark")));
}

TEST_F(TransferQueueTest, AMarkWaitsForWhatWasQueuedBeforeItOnly) {
  queue_.push(1);
  queue_.mark(note("mark"));
  queue_.push(2);
  executor_.run_all();
  EXPECT_THAT(log_, ElementsAre("1", "mark", "2"));
}

TEST_F(TransferQueueTest, AMarkComesThoughJobsBeforeItWereTaken) {
  queue_.push(1);
  queue_.mark(note("mark"));
  queue_.take_if([](int) { return true; });
  EXPECT_TRUE(log_.empty());  // only the executor says when the running job has ended
  executor_.run_all();
  EXPECT_THAT(log_, ElementsAre("mark"));
}

TEST_F(TransferQueueTest, MarksDoNotFillTheQueue) {
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(queue_.mark(note("mark")));
  for (int job : {1, 2, 3}) EXPECT_FALSE(queue_.push(job));
}

TEST_F(TransferQueueTest, MarksBehindAStuckJobAreBounded) {
  queue_.push(1);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(queue_.mark(note("mark")));
  EXPECT_FALSE(queue_.mark(note("one too many")));
  executor_.run_one();
  executor_.run_one();
  EXPECT_TRUE(queue_.mark(note("room again")));
  executor_.run_all();
  EXPECT_EQ(log_.size(), 12u);
  EXPECT_EQ(log_.back(), "room again");
}

TEST_F(TransferQueueTest, CloseTakesBackAndRefusesJobsButServesMarks) {
  queue_.push(1);
  EXPECT_THAT(queue_.close(), ElementsAre(1));
  EXPECT_EQ(queue_.push(2), 2);
  queue_.mark(note("mark"));
  executor_.run_all();
  EXPECT_THAT(log_, ElementsAre("mark"));
}

TEST_F(TransferQueueTest, AJobMayPushAnother) {
  InlineExecutor inline_executor;
  std::vector<int> ran;
  TransferQueue<int> queue(inline_executor, 3, 10, [&](std::span<const int> jobs) {
    ran.push_back(jobs.front());
    if (jobs.front() < 3) {
      EXPECT_FALSE(queue.push(jobs.front() + 1));
    }
  });
  queue.push(1);
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace newmoon
