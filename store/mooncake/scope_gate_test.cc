#include "store/mooncake/scope_gate.h"

#include <gtest/gtest.h>

#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using std::chrono::milliseconds;

class ScopeGateTest : public ::testing::Test {
 protected:
  std::shared_ptr<ScopeGate> make(std::vector<Duration> recheck_delays = {}) {
    return std::make_shared<ScopeGate>(
        ScopeGate::Options{.recheck_delays = std::move(recheck_delays)}, clock_);
  }
  Code put_code(ScopeGate& gate, const ScopeId& scope) {
    const auto put = gate.begin_put(scope, clock_.now());
    return put ? Code::kInternal : put.error().code;
  }

  SystemClock clock_;
};

TEST_F(ScopeGateTest, AScopeIsHiddenUntilAPassFindsNothing) {
  const auto gate = make();
  gate->purge(scope_of(1), false);
  auto work = gate->next_work(10);
  ASSERT_EQ(work.size(), 1u);
  gate->finish(work, 5);
  EXPECT_TRUE(gate->is_hidden(scope_of(1)));
  EXPECT_EQ(put_code(*gate, scope_of(1)), Code::kBusy);
  work = gate->next_work(10);
  gate->finish(work, 0);
  EXPECT_FALSE(gate->is_hidden(scope_of(1)));
  EXPECT_EQ(gate->counts().removed, 5u);
  EXPECT_TRUE(gate->begin_put(scope_of(1), clock_.now()));
}

TEST_F(ScopeGateTest, ForGoodIsForGood) {
  const auto gate = make();
  gate->purge(scope_of(1), true);
  gate->finish(gate->next_work(10), 0);
  EXPECT_EQ(gate->counts().pending, 0u);
  EXPECT_TRUE(gate->is_hidden(scope_of(1)));
  EXPECT_EQ(put_code(*gate, scope_of(1)), Code::kFenced);
  EXPECT_FALSE(gate->is_hidden(scope_of(2)));
}

TEST_F(ScopeGateTest, AScopeWithAPutUnderWayIsPurgedAfterIt) {
  const auto gate = make();
  auto put = gate->begin_put(scope_of(1), clock_.now());
  gate->purge(scope_of(1), true);
  gate->purge(scope_of(2), false);
  const auto work = gate->next_work(10);
  ASSERT_EQ(work.size(), 1u);
  EXPECT_EQ(work[0].scope, scope_of(2));
  gate->finish(work, 0);
  EXPECT_EQ(gate->counts().pending, 1u);
  put->reset();
  EXPECT_EQ(gate->next_work(10).at(0).scope, scope_of(1));
}

TEST_F(ScopeGateTest, APurgeAskedForDuringAPassHasAPassOfItsOwn) {
  const auto gate = make();
  gate->purge(scope_of(1), false);
  const auto work = gate->next_work(10);
  gate->purge(scope_of(1), true);
  gate->finish(work, 0);
  EXPECT_EQ(gate->counts().pending, 1u);
}

TEST_F(ScopeGateTest, AnEmptyScopeIsLookedAtAgainUnlessItIsInUse) {
  const auto gate = make({milliseconds(1), milliseconds(1)});
  gate->purge(scope_of(1), false);
  gate->finish(gate->next_work(10), 0);
  EXPECT_EQ(gate->counts().rechecks, 1u);
  for (int recheck = 0; recheck < 2; ++recheck) {
    const auto work = gate->next_work(10);
    ASSERT_EQ(work.size(), 1u);
    EXPECT_TRUE(work[0].recheck);
    EXPECT_FALSE(gate->is_hidden(scope_of(1)));
    gate->finish(work, 3);
  }
  EXPECT_EQ(gate->counts().rechecks, 0u);

  gate->purge(scope_of(1), false);
  gate->finish(gate->next_work(10), 0);
  (void)gate->begin_put(scope_of(1), clock_.now());
  EXPECT_EQ(gate->counts().rechecks, 0u);
}

TEST_F(ScopeGateTest, SaysHowLongUntilTheLastRecheck) {
  const auto gate = make({milliseconds(1), std::chrono::hours(2)});
  EXPECT_EQ(gate->counts().recheck_left, Duration::zero());
  gate->purge(scope_of(1), false);
  gate->finish(gate->next_work(10), 0);
  EXPECT_GT(gate->counts().recheck_left, std::chrono::hours(1));
  gate->finish(gate->next_work(10), 0);  // the first of them
  EXPECT_EQ(gate->counts().rechecks, 1u);
  EXPECT_GT(gate->counts().recheck_left, std::chrono::hours(1));
  (void)gate->begin_put(scope_of(1), clock_.now());
  EXPECT_EQ(gate->counts().recheck_left, Duration::zero());
}

TEST_F(ScopeGateTest, StopEndsTheWaitForWork) {
  const auto gate = make();
  gate->stop();
  EXPECT_TRUE(gate->next_work(10).empty());
}

}  // namespace
}  // namespace newmoon
