// Engines that share a store, as production wires them: who holds what, and what an
// operator may purge.
#include "engine/engine_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hash/scope_text.h"
#include "model/test_model_runner.h"
#include "store/memory_store.h"
#include "store/scope_purge.h"

namespace newmoon {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// One engine on a toy model.
struct Engine {
  Engine(KvStore& store, Clock& clock, Random& random, const std::string& id) {
    const TestModelRunner::Options toy;
    arena = *KvArena::create(TestModelRunner::kv_layout(toy), 16);
    runner = std::make_unique<TestModelRunner>(toy, *arena);
    EngineStack::Options options;
    options.core.name_space = "run-7";
    options.core.identity = IdentityMode::kDigest;
    options.engine_id = id;
    stack = *EngineStack::start(options, {.runner = *runner,
                                          .arena = *arena,
                                          .store = &store,
                                          .clock = clock,
                                          .random = random,
                                          .wrap_transport = {}});
  }
  const Fence& fence() { return stack->core().fence(); }

  std::unique_ptr<KvArena> arena;
  std::unique_ptr<TestModelRunner> runner;
  std::unique_ptr<EngineStack> stack;
};

class EngineStackTest : public ::testing::Test {
 protected:
  Time in(Duration delay) const { return clock_.now() + delay; }
  // Who holds the scope, once `count` do; leases are told in the background.
  std::vector<std::string> holders(const ScopeId& scope, std::size_t count) {
    std::vector<std::string> held;
    const Time deadline = in(10s);
    do {
      held.clear();
      const std::vector<ScopeUsage> usages = store_.list_scopes().value();
      for (const ScopeUsage& usage : usages) {
        if (usage.scope == scope) held = usage.holders;
      }
      if (held.size() == count) break;
      clock_.sleep_until(in(1ms));
    } while (clock_.now() < deadline);
    return held;
  }

  SystemClock clock_;
  SystemRandom random_;
  ThreadExecutor frees_{"nm-frees"};
  MemoryStore store_{{.budget_bytes = 1 << 20}, clock_, frees_};
};

TEST_F(EngineStackTest, EnginesOfTheSameWeightsHoldOneScopeAndLetGoAtTheirEnd) {
  auto one = std::make_unique<Engine>(store_, clock_, random_, "one");
  const ScopeId scope = *one->fence().scope_id();
  {
    Engine two(store_, clock_, random_, "two");
    ASSERT_EQ(*two.fence().scope_id(), scope);
    const std::vector<std::string> held = holders(scope, 2);
    ASSERT_THAT(held, SizeIs(2));
    EXPECT_THAT(held[0], HasSubstr("one@"));
    EXPECT_THAT(held[1], HasSubstr("two@"));
  }
  EXPECT_THAT(holders(scope, 1), SizeIs(1));
  const ScopeUsage usage = store_.list_scopes()->front();
  EXPECT_EQ(described_scope(usage)->name_space, "run-7");
  one.reset();
  EXPECT_THAT(holders(scope, 0), SizeIs(0));
}

TEST_F(EngineStackTest, RemovingAllAsksForAStoreOfItsOwn) {
  const TestModelRunner::Options toy;
  const auto arena = *KvArena::create(TestModelRunner::kv_layout(toy), 16);
  TestModelRunner runner(toy, *arena);
  const auto start = [&](bool exclusive_store) {
    EngineStack::Options options;
    options.reset_mode = ResetMode::kRemoveAll;
    options.exclusive_store = exclusive_store;
    return EngineStack::start(options, {.runner = runner,
                                        .arena = *arena,
                                        .store = &store_,
                                        .clock = clock_,
                                        .random = random_,
                                        .wrap_transport = {}});
  };
  const auto refused = start(false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBadRequest);
  EXPECT_THAT(refused.error().message, HasSubstr("exclusive_store"));
  EXPECT_TRUE(start(true));
}

TEST_F(EngineStackTest, AnOperatorsPurgeIsRefusedWhileAnyEngineHoldsTheScope) {
  Engine one(store_, clock_, random_, "one");
  auto two = std::make_unique<Engine>(store_, clock_, random_, "two");
  const ScopeId scope = *one.fence().scope_id();
  ASSERT_THAT(holders(scope, 2), SizeIs(2));
  ASSERT_TRUE(one.stack->core().start_weight_update());  // sealed: this engine has left it
  ASSERT_THAT(holders(scope, 1), SizeIs(1));

  auto transport = *ZmqClientTransport::connect({one.stack->endpoint(0)}, clock_);
  LookupKeyClient client(*transport, clock_, {});
  const Result<PurgeAck> refused = client.purge(0, {.name_space = "run-7"}, in(10s));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_THAT(refused.error().message, HasSubstr("two@"));
  Result<RankStats> stats = client.stats(0, in(10s));
  // The engine's fence comes over a connection of its own.
  const Time deadline = in(10s);
  while (stats && stats->floor < one.fence().epoch() && clock_.now() < deadline) {
    stats = client.stats(0, in(10s));
  }
  ASSERT_TRUE(stats);
  EXPECT_EQ(stats->floor, one.fence().epoch());
  EXPECT_EQ(stats->store.budget_bytes, std::uint64_t{1} << 20);
}

}  // namespace
}  // namespace newmoon
