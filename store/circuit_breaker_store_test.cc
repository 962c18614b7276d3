// The breaker around stores that fail, hang, die and come back. That it changes nothing
// while all is well is in conformance_test.cc.
#include "store/circuit_breaker_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/contain.h"
#include "base/testing/out_of_memory.h"
#include "base/testing/temp_dir.h"
#include "store/faulty_store.h"
#include "store/ipc_server.h"
#include "store/make_store.h"
#include "store/memory_store.h"
#include "store/testing/blocks.h"
#include "store/testing/manual_time.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using State = CircuitBreaker::State;
using std::chrono::seconds;

Code code_of(const auto& result) { return result ? Code::kInternal : result.error().code; }

class CircuitBreakerStoreTest : public ::testing::Test {
 protected:
  CircuitBreakerStoreTest() { EXPECT_TRUE(put_one(memory_, key_of(1, 1))); }

  CircuitBreakerStore& make(const std::string& faults) {
    auto faulty =
        std::make_unique<FaultyStore>(memory_, *parse_fault_rules(faults), clock_, random_);
    faulty_ = faulty.get();
    store_.emplace(std::move(faulty), "the store", clock_, CircuitBreaker::Options{});
    return *store_;
  }
  State state() const { return store_->figures().state; }

  ManualClock clock_;
  InlineExecutor executor_;
  SeededRandom random_{7};
  MemoryStore memory_{{.budget_bytes = 16 << 20}, clock_, executor_};
  FaultyStore* faulty_ = nullptr;
  std::optional<CircuitBreakerStore> store_;
};

TEST_F(CircuitBreakerStoreTest, WhileOpenEveryCallIsAnsweredWithoutTheBackend) {
  CircuitBreakerStore& store = make("ping:fail=unavailable,get:every=1:drop,put:every=1:drop");
  store.probe();
  ASSERT_EQ(state(), State::kOpen);
  const std::uint64_t faults = faulty_->faults();
  const Shard shard;
  const std::vector<BlockHash> blocks = blocks_of(1, 1);
  EXPECT_EQ(store.hit_prefix(scope_of(1), {&shard, 1}, blocks), 0u);
  EXPECT_EQ(code_of(check_one(store, key_of(1, 1))), Code::kMiss);
  EXPECT_EQ(code_of(put_one(store, key_of(1, 2))), Code::kBusy);
  EXPECT_EQ(code_of(store.remove(key_of(1, 1))), Code::kUnavailable);
  EXPECT_EQ(code_of(store.purge_scope(scope_of(1), false)), Code::kUnavailable);
  EXPECT_EQ(code_of(store.hold_scope(scope_of(1), "me", seconds(1))), Code::kUnavailable);
  EXPECT_EQ(code_of(store.remove_all()), Code::kUnavailable);
  EXPECT_EQ(code_of(store.ping()), Code::kUnavailable);
  EXPECT_EQ(code_of(store.stats()), Code::kUnavailable);
  EXPECT_EQ(code_of(store.list_scopes()), Code::kUnavailable);
  store.describe_scope(scope_of(1), "not told");
  EXPECT_EQ(faulty_->faults(), faults);
  EXPECT_TRUE(is_there(memory_, key_of(1, 1)));
  EXPECT_EQ(memory_.list_scopes()->at(0).description, "");
  EXPECT_EQ(store.figures().refused_calls, 10u);
  const KvStore& any_store = store;
  EXPECT_EQ(any_store.calls_without_backend(), 10u);
  EXPECT_EQ(faulty_->faults(), faults);
}

TEST_F(CircuitBreakerStoreTest, ItIsBackAfterAPingAndATrial) {
  CircuitBreakerStore& store = make("ping:nth=1:fail=unavailable");
  store.probe();
  EXPECT_FALSE(is_there(store, key_of(1, 1)));
  store.probe();
  EXPECT_TRUE(is_there(store, key_of(1, 1)));
  EXPECT_EQ(state(), State::kClosed);
  EXPECT_TRUE(check_one(store, key_of(1, 1)));
  EXPECT_EQ(store.stats()->breaker_opens, 1u);
  EXPECT_EQ(store.stats()->calls_without_backend, 1u);
}

TEST_F(CircuitBreakerStoreTest, APurgeForGoodIsMadeUpForOnceTheBackendIsBack) {
  CircuitBreakerStore& store = make("ping:nth=1:fail=unavailable");
  ASSERT_TRUE(put_one(memory_, key_of(2, 1)));
  store.probe();
  EXPECT_EQ(code_of(store.purge_scope(scope_of(1), true)), Code::kUnavailable);
  EXPECT_EQ(code_of(store.purge_scope(scope_of(2), false)), Code::kUnavailable);
  EXPECT_TRUE(is_there(memory_, key_of(1, 1)));
  store.probe();
  EXPECT_FALSE(is_there(memory_, key_of(1, 1)));
  EXPECT_TRUE(is_there(memory_, key_of(2, 1)));
  EXPECT_EQ(code_of(put_one(store, key_of(1, 1))), Code::kFenced);
}

TEST_F(CircuitBreakerStoreTest, GetsThatTimeOutOpenIt) {
  CircuitBreakerStore& store = make("get:fail=deadline:delay_ms=5000");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(code_of(check_one(store, key_of(1, 1))), Code::kDeadline);
  const Time before = clock_.now();
  EXPECT_EQ(code_of(check_one(store, key_of(1, 1))), Code::kMiss);
  EXPECT_EQ(clock_.now(), before);  // nobody waits any more
}

TEST_F(CircuitBreakerStoreTest, ABatchThatWasAnsweredInPartIsAnswered) {
  CircuitBreakerStore& store = make("put:rank=1:fail=unavailable");
  const TestBlock block(100, 1);
  const PutItem items[] = {put_item(key_of(1, 5, 0), block), put_item(key_of(1, 5, 1), block)};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(code_of(store.put(items)[1]), Code::kUnavailable);
  EXPECT_EQ(state(), State::kClosed);
  for (int i = 0; i < 3; ++i) (void)store.put(std::span(items).last(1));
  EXPECT_EQ(state(), State::kOpen);
}

// The clock moves only while the held ping sleeps.
TEST_F(CircuitBreakerStoreTest, APingThatHangsHoldsUpNoCall) {
  CircuitBreakerStore& store = make("ping:nth=99:fail=busy");
  faulty_->add_rule({.op = FaultRule::Op::kPing, .count = 1, .hold = "ping"});
  std::thread prober([&] { store.probe(); });
  while (is_there(store, key_of(1, 1))) std::this_thread::yield();
  EXPECT_EQ(state(), State::kOpen);
  EXPECT_EQ(faulty_->waiting_at("ping"), 1u);
  faulty_->release("ping");
  prober.join();
  store.probe();
  EXPECT_TRUE(is_there(store, key_of(1, 1)));
}

// --- over a real socket ------------------------------------------------------------------

class CircuitBreakerIpcTest : public CircuitBreakerStoreTest {
 protected:
  void serve() {
    auto server = StoreServer::start(endpoint_, memory_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  // Whether is_there() comes to say so.
  bool comes_to(KvStore& store, bool there) {
    const Time deadline = system_clock_.now() + seconds(30);
    while (is_there(store, key_of(1, 1)) != there) {
      if (system_clock_.now() > deadline) return false;
      system_clock_.sleep_until(system_clock_.now() + std::chrono::milliseconds(5));
    }
    return true;
  }

  TempDir directory_;
  const std::string endpoint_ = directory_.endpoint("store");
  SystemClock system_clock_;
  std::unique_ptr<StoreServer> server_;
};

// The timeout is long, so that a call that waits for it fails the test by CTest's.
TEST_F(CircuitBreakerIpcTest, AServerThatDiesIsMissesAndOneThatReturnsIsHits) {
  serve();
  const auto store = *make_store(endpoint_, {.timeout = seconds(1000)}, system_clock_, executor_);
  EXPECT_TRUE(is_there(*store, key_of(1, 1)));
  for (int round = 1; round <= 2; ++round) {
    server_.reset();
    EXPECT_TRUE(comes_to(*store, false));
    while (code_of(put_one(*store, key_of(1, 2))) != Code::kBusy) {
      // Unavailable, until the breaker has opened.
    }
    EXPECT_EQ(store->hit_prefix(scope_of(1), {}, {}), 0u);
    serve();
    EXPECT_TRUE(comes_to(*store, true));
    EXPECT_TRUE(check_one(*store, key_of(1, 1)));
    EXPECT_EQ(store->stats()->breaker_opens, static_cast<std::uint64_t>(round));
  }
}

// A trial that is broken off has failed: it must not be the only one for ever.
TEST_F(CircuitBreakerStoreTest, WithoutMemoryTheNextTrialComes) {
  bool has_failed = true;
  for (std::size_t count = 0; has_failed; ++count) {
    CircuitBreakerStore& store = make("ping:nth=1:fail=unavailable");
    store.probe();
    ASSERT_EQ(state(), State::kOpen);
    clock_.advance(seconds(60));
    store.probe();
    ASSERT_EQ(state(), State::kHalfOpen);
    {
      const NoMemoryAfter none(count);
      (void)contain([&] { return store.hold_scope(scope_of(1), "me", seconds(1)); });
      has_failed = none.has_failed();
    }
    clock_.advance(seconds(60));
    store.probe();
    EXPECT_TRUE(check_one(store, key_of(1, 1))) << count;
    EXPECT_EQ(state(), State::kClosed) << count;
  }
}

}  // namespace
}  // namespace newmoon
