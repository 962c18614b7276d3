#include "store/scope_purge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hash/scope_text.h"
#include "store/memory_store.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using newmoon::testing::block_of;
using newmoon::testing::put_one;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Scope scope_named(const std::string& name_space, const std::string& label) {
  return {name_space, "model", "layout", LabelIdentity{label}};
}

class ScopePurge : public ::testing::Test {
 protected:
  void fill(const Scope& scope, const std::string& description) {
    ASSERT_TRUE(put_one(store_, Key{scope.id(), {}, block_of(1)}));
    store_.describe_scope(scope.id(), description);
  }
  void fill(const Scope& scope) { fill(scope, describe(scope)); }
  Result<std::vector<ScopeUsage>> of_namespace(const std::string& name) {
    return scopes_to_purge(store_, {.scope = {}, .name_space = name});
  }

  SystemClock clock_;
  InlineExecutor executor_;
  MemoryStore store_{{.budget_bytes = 1 << 20}, clock_, executor_};
  const Scope a1_ = scope_named("a", "1");
  const Scope a2_ = scope_named("a", "2");
  const Scope ab_ = scope_named("ab", "1");
};

TEST_F(ScopePurge, SelectsAScopeByItsIdAndANamespaceByItsWholeName) {
  for (const Scope& scope : {a1_, a2_, ab_}) fill(scope);
  EXPECT_THAT(*of_namespace("a"), SizeIs(2));
  EXPECT_THAT(*of_namespace("ab"), ElementsAre(Field(&ScopeUsage::scope, ab_.id())));
  EXPECT_EQ(of_namespace("").error().code, Code::kMiss);
  EXPECT_THAT(*scopes_to_purge(store_, {.scope = a2_.id(), .name_space = {}}),
              ElementsAre(Field(&ScopeUsage::scope, a2_.id())));
  EXPECT_EQ(scopes_to_purge(store_, {.scope = ScopeId(), .name_space = {}}).error().code,
            Code::kMiss);
}

TEST_F(ScopePurge, ADescriptionThatIsNotTheScopesOwnSelectsNothing) {
  fill(a1_, describe(ab_));
  fill(a2_, "namespace=a");
  EXPECT_EQ(of_namespace("a").error().code, Code::kMiss);
  EXPECT_EQ(of_namespace("ab").error().code, Code::kMiss);
}

TEST_F(ScopePurge, RefusesTheWholeSelectionAndNamesTheUser) {
  for (const Scope& scope : {a1_, a2_, ab_}) fill(scope);
  ASSERT_TRUE(store_.hold_scope(a2_.id(), "engine-1@host:7", std::chrono::hours(1)));
  const auto refused = of_namespace("a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_THAT(refused.error().message, HasSubstr(a2_.id().hex()));
  EXPECT_THAT(refused.error().message, HasSubstr("engine-1@host:7"));
  EXPECT_TRUE(scopes_to_purge(store_, {.scope = a1_.id(), .name_space = {}}));
  ASSERT_TRUE(store_.hold_scope(a2_.id(), "engine-1@host:7", Duration::zero()));
  EXPECT_THAT(*of_namespace("a"), SizeIs(2));
}

}  // namespace
}  // namespace newmoon
