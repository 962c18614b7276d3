#include "store/faulty_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <optional>
#include <thread>

#include "store/memory_store.h"
#include "store/testing/blocks.h"
#include "store/testing/manual_time.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using std::chrono::milliseconds;

Code code_of(const auto& result) { return result ? Code::kInternal : result.error().code; }

class FaultyStoreTest : public ::testing::Test {
 protected:
  FaultyStore& make(const std::string& spec) {
    Result<std::vector<FaultRule>> rules = parse_fault_rules(spec);
    EXPECT_TRUE(rules) << rules.error().message;
    store_.emplace(inner_, *rules, clock_, random_);
    return *store_;
  }

  ManualClock clock_;
  InlineExecutor executor_;
  SeededRandom random_{7};
  MemoryStore inner_{{.budget_bytes = 16 << 20}, clock_, executor_};
  std::optional<FaultyStore> store_;
};

TEST_F(FaultyStoreTest, AnswersPingsAsTold) {
  FaultyStore& store = make("ping:nth=2:fail=deadline:delay_ms=30");
  EXPECT_TRUE(store.ping());
  const Time before = clock_.now();
  EXPECT_EQ(code_of(store.ping()), Code::kDeadline);
  EXPECT_EQ(clock_.now() - before, milliseconds(30));
  EXPECT_TRUE(store.ping());
}

// --- when a rule applies -------------------------------------------------------------

TEST_F(FaultyStoreTest, FailsTheNthCallOnly) {
  FaultyStore& store = make("put:nth=3:fail=unavailable");
  for (std::uint64_t i = 1; i <= 6; ++i) {
    EXPECT_EQ(code_of(put_one(store, key_of(1, i))), i == 3 ? Code::kUnavailable : Code::kInternal);
  }
  EXPECT_FALSE(is_there(inner_, key_of(1, 3)));
  EXPECT_EQ(store.faults(), 1u);
}

TEST_F(FaultyStoreTest, FailsEachNthCallUpToCount) {
  FaultyStore& store = make("put:every=2:count=2:fail=busy");
  std::string outcome;
  for (std::uint64_t i = 0; i < 8; ++i) outcome += put_one(store, key_of(1, i)) ? '.' : 'x';
  EXPECT_EQ(outcome, ".x.x....");
}

TEST_F(FaultyStoreTest, MarkedRulesCountFromEachMark) {
  FaultyStore& store = make("put:marked:nth=2:fail=busy");
  std::string outcome;
  for (std::uint64_t i = 1; i <= 8; ++i) {
    if (i == 3 || i == 6) store.mark();
    outcome += code_of(put_one(store, key_of(1, i))) == Code::kBusy ? 'b' : '.';
  }
  EXPECT_EQ(outcome, "...b..b.");
}

TEST_F(FaultyStoreTest, MatchesTheRank) {
  FaultyStore& store = make("put:rank=1:fail=busy,get:rank=0:drop");
  ASSERT_TRUE(put_one(store, key_of(1, 1, 0)));
  EXPECT_EQ(code_of(put_one(store, key_of(1, 1, 1))), Code::kBusy);
  ASSERT_TRUE(put_one(inner_, key_of(1, 1, 1)));
  EXPECT_EQ(code_of(check_one(store, key_of(1, 1, 0))), Code::kMiss);
  EXPECT_TRUE(check_one(store, key_of(1, 1, 1)));
}

TEST_F(FaultyStoreTest, OnlyCallsOfTheRankAreCounted) {
  FaultyStore& store = make("put:rank=1:nth=2:fail=busy");
  EXPECT_TRUE(put_one(store, key_of(1, 1, 1)));
  EXPECT_TRUE(put_one(store, key_of(1, 2, 0)));
  EXPECT_FALSE(put_one(store, key_of(1, 3, 1)));
}

TEST_F(FaultyStoreTest, AShareOfABatchFails) {
  FaultyStore& store = make("put:share=50:fail=unavailable");
  const TestBlock block(100, 1);
  std::vector<PutItem> items;
  for (std::uint64_t i = 0; i < 200; ++i) items.push_back(put_item(key_of(1, i), block));
  std::size_t stored = 0;
  const std::vector<Status> statuses = store.put(items);
  ASSERT_EQ(statuses.size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(is_there(inner_, items[i].key), statuses[i].has_value());
    stored += statuses[i].has_value();
  }
  EXPECT_GT(stored, 60u);
  EXPECT_LT(stored, 140u);
}

TEST_F(FaultyStoreTest, TheSameSeedGivesTheSameFaults) {
  const auto run = [&](std::uint64_t seed) {
    SeededRandom random(seed);
    FaultyStore store(inner_, *parse_fault_rules("put:share=50:fail=busy"), clock_, random);
    std::string outcome;
    for (std::uint64_t i = 0; i < 64; ++i) outcome += put_one(store, key_of(9, i)) ? '.' : 'x';
    return outcome;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

// --- what it does ----------------------------------------------------------------------

TEST_F(FaultyStoreTest, AFailureAfterHasDoneTheWork) {
  FaultyStore& store = make(
      "put:when=after:fail=deadline,get:when=after:fail=unavailable,purge:when=after:fail=busy");
  EXPECT_EQ(code_of(put_one(store, key_of(1, 1))), Code::kDeadline);
  EXPECT_TRUE(check_one(inner_, key_of(1, 1)));
  TestBlock into(100, 99);
  EXPECT_EQ(code_of(get_one(store, key_of(1, 1), into)), Code::kUnavailable);
  EXPECT_EQ(into.bytes(), TestBlock(100, key_of(1, 1).block.event_int()).bytes());
  EXPECT_EQ(code_of(store.purge_scope(scope_of(1), true)), Code::kBusy);
  EXPECT_FALSE(is_there(inner_, key_of(1, 1)));
}

TEST_F(FaultyStoreTest, DropsWhatItClaimsToHaveDone) {
  FaultyStore& store = make("put:nth=2:drop,purge:drop,hit:nth=2:drop");
  EXPECT_TRUE(put_one(store, key_of(1, 1)));
  EXPECT_TRUE(put_one(store, key_of(1, 2)));
  EXPECT_TRUE(store.purge_scope(scope_of(1), true));
  EXPECT_TRUE(check_one(store, key_of(1, 1)));
  EXPECT_EQ(code_of(check_one(store, key_of(1, 2))), Code::kMiss);
  EXPECT_TRUE(is_there(store, key_of(1, 1)));
  EXPECT_FALSE(is_there(store, key_of(1, 1)));
}

TEST_F(FaultyStoreTest, LookupsAndPurgesFail) {
  FaultyStore& store = make("hit:rank=2:fail=unavailable,purge:fail=unavailable");
  ASSERT_TRUE(put_one(store, key_of(1, 1)));
  const std::vector<Shard> shards = {Shard{.tp = 0}, Shard{.tp = 2}};
  const std::vector<BlockHash> blocks = blocks_of(1, 1);
  EXPECT_EQ(store.hit_prefix(scope_of(1), std::span(shards).first(1), blocks), 1u);
  EXPECT_EQ(code_of(store.hit_prefix(scope_of(1), shards, blocks)), Code::kUnavailable);
  EXPECT_EQ(code_of(store.purge_scope(scope_of(1), true)), Code::kUnavailable);
  EXPECT_TRUE(is_there(inner_, key_of(1, 1)));
}

// What a put stores if its source changes while the put is delayed.
class DelayedPut : public FaultyStoreTest {
 protected:
  Bytes stored_bytes(const std::string& when) {
    FaultyStore& store = make("put:delay_ms=400:when=" + when);
    TestBlock source(1000, 1);
    clock_.on_sleep = [&] { source.target()[0][0] = 0xff; };
    EXPECT_TRUE(put_one(store, key_of(1, 1), source));
    EXPECT_GE(clock_.now(), milliseconds(400));
    TestBlock into(1000, 2);
    const Result<GetValue> got = get_one(inner_, key_of(1, 1), into);
    EXPECT_TRUE(got);
    EXPECT_EQ(got->header.checksum, got->payload_checksum);
    return into.bytes();
  }
};

TEST_F(DelayedPut, BeforeReadsTheSourceLate) { EXPECT_EQ(stored_bytes("before")[0], 0xff); }

TEST_F(DelayedPut, AfterStoresTheEarlyBytesLate) {
  EXPECT_EQ(stored_bytes("after"), TestBlock(1000, 1).bytes());
}

TEST_F(FaultyStoreTest, ALatePutIsStoredAfterItsCallerGaveUp) {
  FaultyStore& store = make("put:nth=1:late_ms=500");
  TestBlock source(1000, key_of(1, 1).block.event_int());
  EXPECT_EQ(code_of(put_one(store, key_of(1, 1), source)), Code::kDeadline);
  source.target()[0][0] ^= 0xff;
  clock_.advance(milliseconds(499));
  EXPECT_FALSE(is_there(store, key_of(1, 1)));
  clock_.advance(milliseconds(1));
  EXPECT_FALSE(is_there(inner_, key_of(1, 1)));
  EXPECT_TRUE(is_there(store, key_of(1, 1)));
  EXPECT_TRUE(check_one(store, key_of(1, 1), 1000));
}

TEST_F(FaultyStoreTest, ALatePutIntoAPurgedScopeIsRefusedByTheStoreBehind) {
  FaultyStore& store = make("put:late_ms=500");
  (void)put_one(store, key_of(1, 1));
  ASSERT_TRUE(store.purge_scope(scope_of(1), true));
  clock_.advance(milliseconds(500));
  EXPECT_EQ(store.stats()->refused_late_puts, 1u);
}

// What a get delivers if its target is used otherwise while the get is delayed.
class DelayedGet : public FaultyStoreTest {
 protected:
  bool overwritten_late(const std::string& when) {
    FaultyStore& store = make("get:delay_ms=400:when=" + when);
    EXPECT_TRUE(put_one(store, key_of(1, 1), TestBlock(1000, 1)));
    TestBlock into(1000, 2);
    clock_.on_sleep = [&] { into.target()[0][0] = 0xee; };
    EXPECT_TRUE(get_one(store, key_of(1, 1), into));
    return into.bytes()[0] != 0xee;
  }
};

TEST_F(DelayedGet, BeforeWritesTheTargetLate) { EXPECT_TRUE(overwritten_late("before")); }
TEST_F(DelayedGet, AfterSaysLateThatItWrote) { EXPECT_FALSE(overwritten_late("after")); }

TEST_F(FaultyStoreTest, ACorruptReadFailsItsCheck) {
  FaultyStore& store = make("get:nth=1:corrupt");
  ASSERT_TRUE(put_one(store, key_of(1, 1), 1000));
  EXPECT_EQ(code_of(check_one(store, key_of(1, 1), 1000)), Code::kCorrupt);
  EXPECT_TRUE(check_one(store, key_of(1, 1), 1000));
}

TEST_F(FaultyStoreTest, ACorruptReadDiffersInOneBit) {
  FaultyStore& store = make("get:corrupt");
  const TestBlock source(1000, 1);
  ASSERT_TRUE(put_one(store, key_of(1, 1), source));
  TestBlock into(1000, 2);
  const Result<GetValue> got = get_one(store, key_of(1, 1), into);
  ASSERT_TRUE(got);
  EXPECT_NE(got->payload_checksum, got->header.checksum);
  EXPECT_EQ(got->payload_checksum, checksum_of(into.target()));
  int bits = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    bits += std::popcount(static_cast<unsigned>(into.bytes()[i] ^ source.bytes()[i]));
  }
  EXPECT_EQ(bits, 1);
}

TEST_F(FaultyStoreTest, ACorruptPutStaysCorrupt) {
  FaultyStore& store = make("put:corrupt");
  ASSERT_TRUE(put_one(store, key_of(1, 1), 1000));
  EXPECT_EQ(code_of(check_one(inner_, key_of(1, 1), 1000)), Code::kCorrupt);
}

TEST_F(FaultyStoreTest, ATruncatedReadLeavesTheSecondHalfAsItWas) {
  FaultyStore& store = make("get:truncate");
  const TestBlock source(1000, 1);
  ASSERT_TRUE(put_one(store, key_of(1, 1), source));
  TestBlock into(1000, 2);
  const Bytes before = into.bytes();
  const Result<GetValue> got = get_one(store, key_of(1, 1), into);
  ASSERT_TRUE(got);
  EXPECT_NE(got->payload_checksum, got->header.checksum);
  EXPECT_TRUE(std::equal(into.bytes().begin(), into.bytes().begin() + 500, source.bytes().begin()));
  EXPECT_TRUE(std::equal(into.bytes().begin() + 500, into.bytes().end(), before.begin() + 500));
}

TEST_F(FaultyStoreTest, ATruncatedPutHasAnotherLength) {
  FaultyStore& store = make("put:truncate");
  ASSERT_TRUE(put_one(store, key_of(1, 1), 1000));
  EXPECT_EQ(code_of(check_one(inner_, key_of(1, 1), 1000)), Code::kBadRequest);
  TestBlock half(500, 0);
  EXPECT_TRUE(get_one(inner_, key_of(1, 1), half));
}

TEST_F(FaultyStoreTest, HoldsACallUntilItIsReleased) {
  SystemClock clock;
  FaultRule rule{.op = FaultRule::Op::kPut, .hold = "latch"};
  FaultyStore store(inner_, {rule}, clock, random_);
  std::atomic<bool> returned{false};
  std::thread writer([&] {
    EXPECT_TRUE(put_one(store, key_of(1, 1)));
    returned = true;
  });
  while (store.waiting_at("latch") == 0) std::this_thread::yield();
  EXPECT_FALSE(returned);
  EXPECT_FALSE(is_there(inner_, key_of(1, 1)));
  store.release("latch");
  writer.join();
  EXPECT_TRUE(is_there(inner_, key_of(1, 1)));
  EXPECT_EQ(store.waiting_at("latch"), 0u);
  EXPECT_TRUE(put_one(store, key_of(1, 2)));
}

TEST_F(FaultyStoreTest, RulesComeAndGo) {
  FaultyStore& store = make("put:fail=busy");
  EXPECT_FALSE(put_one(store, key_of(1, 1)));
  store.clear_rules();
  EXPECT_TRUE(put_one(store, key_of(1, 1)));
  store.add_rule({.op = FaultRule::Op::kGet, .drop = true});
  EXPECT_FALSE(check_one(store, key_of(1, 1)));
  EXPECT_EQ(store.faults(), 2u);
}

// --- SPEC ----------------------------------------------------------------------------

TEST(FaultRules, ReadsEveryField) {
  const auto rules = parse_fault_rules(
      "put:rank=1:nth=3:delay_ms=400,get:rank=0:every=5:count=2:share=30:fail=unavailable,"
      "put:late_ms=9:truncate,get:corrupt:when=after,hit:drop");
  ASSERT_TRUE(rules) << rules.error().message;
  ASSERT_EQ(rules->size(), 5u);
  EXPECT_EQ((*rules)[0].op, FaultRule::Op::kPut);
  EXPECT_EQ((*rules)[0].rank, 1);
  EXPECT_EQ((*rules)[0].nth, 3u);
  EXPECT_EQ((*rules)[0].delay, milliseconds(400));
  EXPECT_EQ((*rules)[1].op, FaultRule::Op::kGet);
  EXPECT_EQ((*rules)[1].every, 5u);
  EXPECT_EQ((*rules)[1].count, 2u);
  EXPECT_EQ((*rules)[1].share_percent, 30u);
  EXPECT_EQ((*rules)[1].fail, Code::kUnavailable);
  EXPECT_EQ((*rules)[2].late, milliseconds(9));
  EXPECT_TRUE((*rules)[2].truncate);
  EXPECT_TRUE((*rules)[3].corrupt);
  EXPECT_EQ((*rules)[3].when, FaultRule::When::kAfter);
  EXPECT_EQ((*rules)[4].op, FaultRule::Op::kHit);
  EXPECT_TRUE((*rules)[4].drop);
}

struct BadSpec {
  const char* spec;
  const char* named;  // what the error must name
};

class BadFaultRules : public ::testing::TestWithParam<BadSpec> {};

TEST_P(BadFaultRules, AreRefusedByName) {
  const auto rules = parse_fault_rules(GetParam().spec);
  ASSERT_FALSE(rules);
  EXPECT_EQ(rules.error().code, Code::kBadRequest);
  EXPECT_NE(rules.error().message.find(GetParam().named), std::string::npos)
      << rules.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Specs, BadFaultRules,
    ::testing::Values(
        BadSpec{"", "put, get, hit, purge or ping"}, BadSpec{"poke:drop", "'poke:drop'"},
        BadSpec{"put", "needs an effect"}, BadSpec{"put:nth=1", "needs an effect"},
        BadSpec{"put:drop,", "''"}, BadSpec{"put:nth=0:drop", "nth needs a number"},
        BadSpec{"put:nth=x:drop", "'x'"}, BadSpec{"put:nth=:drop", "nth"},
        BadSpec{"put:nth=3x:drop", "'3x'"}, BadSpec{"put:nth=-1:drop", "'-1'"},
        BadSpec{"put:rank=65536:drop", "0 to 65535"}, BadSpec{"put:share=101:drop", "1 to 100"},
        BadSpec{"put:fail=oops", "'oops'"}, BadSpec{"put:fail", "fail needs a code"},
        BadSpec{"put:when=later:drop", "before or after"},
        BadSpec{"put:colour=red:drop", "'colour'"}, BadSpec{"put:drop=1", "takes no value"},
        BadSpec{"get:late_ms=5", "put only"}, BadSpec{"hit:corrupt", "put and get only"},
        BadSpec{"purge:rank=1:drop", "put, get and hit only"},
        BadSpec{"ping:drop", "nothing to drop"},
        BadSpec{"put:nth=2:every=2:drop", "exclude each other"}));

}  // namespace
}  // namespace newmoon
