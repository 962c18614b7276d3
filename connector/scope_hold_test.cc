#include "connector/scope_hold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "admin/testing/fake_transport.h"
#include "base/contain.h"
#include "base/testing/out_of_memory.h"
#include "connector/testing/manual_executor.h"
#include "hash/scope_text.h"
#include "store/memory_store.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using newmoon::testing::FakeClock;
using newmoon::testing::ManualExecutor;
using newmoon::testing::scope_of;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ScopeHoldTest : public ::testing::Test {
 protected:
  void keep(std::set<ScopeId> busy = {}) {
    hold_.keep(fence_, [&] { return busy; });
  }
  void run() {
    while (executor_.run_one()) {
    }
  }
  // Scopes that the store says are held, and by nobody but this engine.
  std::vector<ScopeId> held() {
    std::vector<ScopeId> scopes;
    const std::vector<ScopeUsage> usages = store_.list_scopes().value();
    for (const ScopeUsage& usage : usages) {
      EXPECT_THAT(usage.holders, ElementsAre("engine-1"));
      scopes.push_back(usage.scope);
    }
    return scopes;
  }

  FakeClock clock_;
  InlineExecutor frees_;
  ManualExecutor executor_;
  MemoryStore store_{{.budget_bytes = 1 << 20}, clock_, frees_};
  Fence fence_{{.name_space = "ns", .model = "m", .layout = "l", .incarnation = {}}};
  ScopeHold hold_{{.holder = "engine-1"}, store_, clock_, executor_};
};

TEST_F(ScopeHoldTest, HoldsAndDescribesTheScopeThatIsOpen) {
  keep();
  run();
  EXPECT_THAT(held(), IsEmpty());  // sealed
  fence_.adopt(LabelIdentity{"step-1"});
  keep();
  EXPECT_THAT(held(), IsEmpty());  // not on the engine's thread
  run();
  EXPECT_THAT(held(), ElementsAre(*fence_.scope_id()));
  EXPECT_EQ(store_.list_scopes()->front().description, describe(*fence_.scope()));
}

TEST_F(ScopeHoldTest, LetsGoOfAScopeOnceItIsLeftAndItsJobsHaveEnded) {
  fence_.adopt(LabelIdentity{"step-1"});
  const ScopeId old = *fence_.scope_id();
  keep();
  run();
  fence_.adopt(LabelIdentity{"step-2"});
  keep({old});
  run();
  EXPECT_THAT(held(), UnorderedElementsAre(old, *fence_.scope_id()));
  clock_.advance(seconds(1));
  keep();
  run();
  EXPECT_THAT(held(), ElementsAre(*fence_.scope_id()));
}

TEST_F(ScopeHoldTest, RenewsTheLeaseOfAnIdleEngineForAsLongAsItLives) {
  fence_.adopt(LabelIdentity{"step-1"});
  for (int second = 0; second < 300; ++second) {
    keep();
    run();
    ASSERT_THAT(held(), ElementsAre(*fence_.scope_id())) << second;
    clock_.advance(seconds(1));
  }
  clock_.advance(seconds(60));  // it died
  EXPECT_THAT(held(), IsEmpty());
}

TEST_F(ScopeHoldTest, AStoreThatForgotIsToldAgain) {
  fence_.adopt(LabelIdentity{"step-1"});
  keep();
  run();
  ASSERT_TRUE(store_.hold_scope(*fence_.scope_id(), "engine-1", Duration::zero()));
  clock_.advance(seconds(20));
  keep();
  run();
  EXPECT_THAT(held(), ElementsAre(*fence_.scope_id()));
}

TEST_F(ScopeHoldTest, PostsOneTaskHoweverLongTheStoreIsStuck) {
  for (int i = 0; i < 10; ++i) {
    fence_.adopt(LabelIdentity{std::to_string(i)});
    keep();
  }
  int tasks = 0;
  while (executor_.run_one()) ++tasks;
  EXPECT_LE(tasks, 2);  // the nine that were left meanwhile were never told
  EXPECT_THAT(held(), ElementsAre(*fence_.scope_id()));
}

TEST_F(ScopeHoldTest, GivesAllBackAtTheEnd) {
  fence_.adopt(LabelIdentity{"step-1"});
  keep({scope_of(7)});
  run();
  ASSERT_EQ(held().size(), 2u);
  hold_.release();
  run();
  EXPECT_THAT(held(), IsEmpty());
}

TEST_F(ScopeHoldTest, WithoutMemoryTheNextLooksHoldAndLetGoAllTheSame) {
  bool has_failed = true;
  for (std::size_t count = 0; has_failed; ++count) {
    fence_.adopt(LabelIdentity{std::string(40, 'x') + std::to_string(count)});
    {
      const testing::NoMemoryAfter none(count);
      (void)contain([&] { keep({scope_of(7)}); });
      (void)contain([&] { run(); });
      has_failed = none.has_failed();
    }
    for (int second = 0; second < 70; ++second) {
      clock_.advance(seconds(1));
      keep();
      run();
    }
    EXPECT_THAT(held(), ElementsAre(*fence_.scope_id())) << count;
  }
}

}  // namespace
}  // namespace newmoon
