// Every backend passes the same tests: the sentences of kv_store.h one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "store/mooncake/value_form.h"
#include "store/testing/backends.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

INSTANTIATE_TEST_SUITE_P(Backends, StoreConformance,
                         ::testing::Values(Backend{"memory", make_memory},
                                           Backend{"faulty", make_faulty}, Backend{"ipc", make_ipc},
                                           Backend{"mooncake", make_mooncake}),
                         name_of_backend);

// --- put and get ---------------------------------------------------------------

TEST_P(StoreConformance, GetsBackTheBytesThatWerePut) {
  for (const std::size_t bytes : {1, 64, 100, 4096, 5000, 368640}) {
    const Key key = key_of(1, bytes);
    ASSERT_TRUE(put_one(store(), key, bytes));
    EXPECT_TRUE(check_one(store(), key, bytes)) << bytes;
  }
}

TEST_P(StoreConformance, AnEmptyPayloadIsAValue) {
  const Key key = key_of(1, 1);
  ASSERT_TRUE(put_one(store(), key, 0));
  EXPECT_TRUE(check_one(store(), key, 0));
}

TEST_P(StoreConformance, FragmentsOfTheReaderNeedNotBeThoseOfTheWriter) {
  const Key key = key_of(1, 1);
  const TestBlock source(10000, 7, 3);
  ASSERT_TRUE(put_one(store(), key, source));
  TestBlock into(10000, 8, 11);
  ASSERT_TRUE(get_one(store(), key, into));
  EXPECT_EQ(into.bytes(), source.bytes());
}

TEST_P(StoreConformance, SetsTheChecksumOfTheBytesOnPut) {
  const Key key = key_of(1, 1);
  TestBlock block(5000, 7);
  ASSERT_TRUE(put_one(store(), key, block));
  TestBlock into(5000, 8);
  const Result<GetValue> got = get_one(store(), key, into);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->header.flags, ValueHeader::kChecksummed);
  EXPECT_EQ(got->header.checksum, checksum_of(block.target()));
  EXPECT_EQ(got->payload_checksum, got->header.checksum);
}

TEST_P(StoreConformance, StoresTheHeaderAsGivenWithoutChecksum) {
  const Key key = key_of(1, 1);
  const TestBlock block(5000, 7);
  PutItem item = put_item(key, block, false);
  item.header.checksum = 99;
  item.header.flags = ValueHeader::kChecksummed;
  ASSERT_TRUE(store().put({&item, 1})[0]);
  TestBlock into(5000, 8);
  const GetItem wanted{key, into.target(), false};
  const Result<GetValue> got = store().get({&wanted, 1})[0];
  ASSERT_TRUE(got);
  EXPECT_EQ(std::memcmp(&got->header, &item.header, sizeof(ValueHeader)), 0);
  EXPECT_EQ(got->payload_checksum, 0u);
  EXPECT_EQ(into.bytes(), block.bytes());
}

TEST_P(StoreConformance, TheFirstPutWins) {
  const Key key = key_of(1, 1);
  const TestBlock first(100, 1);
  ASSERT_TRUE(put_one(store(), key, first));
  EXPECT_TRUE(put_one(store(), key, TestBlock(100, 2)));
  EXPECT_TRUE(put_one(store(), key, TestBlock(200, 3)));
  TestBlock into(100, 9);
  ASSERT_TRUE(get_one(store(), key, into));
  EXPECT_EQ(into.bytes(), first.bytes());
  EXPECT_EQ(store().stats()->blocks, 1u);
}

TEST_P(StoreConformance, EveryPartOfTheKeyCounts) {
  const Key key = key_of(1, 1);
  ASSERT_TRUE(put_one(store(), key));
  Key other_scope = key, other_block = key;
  other_scope.scope.bytes[15] ^= 1;
  other_block.block = block_of(2);
  Key shorter_hash = key;
  shorter_hash.block = BlockHash(key.block.bytes().first(16));
  EXPECT_EQ(code_of(check_one(store(), other_scope)), Code::kMiss);
  EXPECT_EQ(code_of(check_one(store(), other_block)), Code::kMiss);
  EXPECT_EQ(code_of(check_one(store(), shorter_hash)), Code::kMiss);
  for (const Shard shard : {Shard{.tp = 1}, Shard{.pp = 1}, Shard{.dcp = 1}, Shard{.group = 1}}) {
    Key other_shard = key;
    other_shard.shard = shard;
    EXPECT_EQ(code_of(check_one(store(), other_shard)), Code::kMiss);
    EXPECT_FALSE(is_there(store(), other_shard));
  }
  EXPECT_TRUE(check_one(store(), key));
}

TEST_P(StoreConformance, WhoAsksForAnotherLengthIsToldBoth) {
  for (const std::size_t stored : {std::size_t{100}, kOnPagesFrom - 1, kOnPagesFrom + 100}) {
    const Key key = key_of(1, stored);
    ASSERT_TRUE(put_one(store(), key, stored));
    for (const std::size_t asked : {stored - 1, stored + 1}) {
      const Status refused = check_one(store(), key, asked);
      ASSERT_EQ(code_of(refused), Code::kBadRequest) << stored;
      EXPECT_THAT(refused.error().message,
                  AllOf(HasSubstr("has " + std::to_string(stored) + " bytes"),
                        HasSubstr(std::to_string(asked) + " were asked for")));
    }
    EXPECT_TRUE(check_one(store(), key, stored));
  }
}

TEST_P(StoreConformance, RefusesAHeaderOfAnotherKeyOrLength) {
  const TestBlock block(100, 1);
  const PutItem good = put_item(key_of(1, 1), block);
  std::vector<PutItem> items(5, good);
  items[0].header.scope_id[3] ^= 1;
  items[1].header.block_hash[3] ^= 1;
  items[2].header.shard ^= 1;
  items[3].header.payload_bytes = 99;
  items[4].header.block_hash_bytes = 200;
  for (const Status& status : store().put(items)) EXPECT_EQ(code_of(status), Code::kBadRequest);
  EXPECT_FALSE(is_there(store(), good.key));
}

TEST_P(StoreConformance, EmptyBatchesGiveEmptyResults) {
  EXPECT_THAT(store().put({}), IsEmpty());
  EXPECT_THAT(store().get({}), IsEmpty());
}

TEST_P(StoreConformance, ABatchAnswersEachItemInOrder) {
  const TestBlock block(100, 1);
  std::vector<PutItem> puts;
  for (int i = 0; i < 4; ++i) puts.push_back(put_item(key_of(1, i), block));
  puts[2].header.payload_bytes = 7;
  const std::vector<Status> stored = store().put(puts);
  ASSERT_THAT(stored, SizeIs(4));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(stored[i].has_value(), i != 2) << i;

  std::vector<TestBlock> targets;
  for (int i = 0; i < 4; ++i) targets.emplace_back(i == 3 ? 50 : 100, 9);
  std::vector<GetItem> gets;
  for (int i = 0; i < 4; ++i) gets.push_back({key_of(1, i), targets[i].target()});
  const std::vector<Result<GetValue>> got = store().get(gets);
  ASSERT_THAT(got, SizeIs(4));
  EXPECT_TRUE(got[0]);
  EXPECT_TRUE(got[1]);
  EXPECT_EQ(code_of(got[2]), Code::kMiss);
  EXPECT_EQ(code_of(got[3]), Code::kBadRequest);
  EXPECT_EQ(targets[1].bytes(), block.bytes());
}

TEST_P(StoreConformance, ABigBatchGoesThroughWhole) {
  constexpr std::size_t kBlocks = 3000;
  const TestBlock block(1000, 5);
  std::vector<PutItem> puts;
  std::vector<TestBlock> targets;
  std::vector<GetItem> gets;
  for (std::size_t i = 0; i < kBlocks; ++i) targets.emplace_back(1000, 9);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    puts.push_back(put_item(key_of(1, i), block));
    gets.push_back({key_of(1, i), targets[i].target()});
  }
  for (const Status& status : store().put(puts)) ASSERT_TRUE(status) << to_string(status.error());
  for (const auto& value : store().get(gets)) ASSERT_TRUE(value) << to_string(value.error());
  for (const TestBlock& target : targets) ASSERT_EQ(target.bytes(), block.bytes());
}

// --- hit_prefix ----------------------------------------------------------------

TEST_P(StoreConformance, HitPrefixStopsAtTheFirstMiss) {
  const Shard shard;
  const std::vector<BlockHash> blocks = blocks_of(0, 1000);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i == 700) continue;
    ASSERT_TRUE(put_one(store(), key_of(1, i), 10));
  }
  EXPECT_EQ(store().hit_prefix(scope_of(1), {&shard, 1}, blocks), 700u);
  EXPECT_EQ(store().hit_prefix(scope_of(1), {&shard, 1}, std::span(blocks).first(700)), 700u);
  EXPECT_EQ(store().hit_prefix(scope_of(1), {&shard, 1}, std::span(blocks).subspan(701)), 299u);
  EXPECT_EQ(store().hit_prefix(scope_of(1), {&shard, 1}, std::span(blocks).subspan(700)), 0u);
  EXPECT_EQ(store().hit_prefix(scope_of(2), {&shard, 1}, blocks), 0u);
}

TEST_P(StoreConformance, ABlockHitsOnlyIfEveryShardIsThere) {
  const std::vector<Shard> shards = {Shard{.tp = 0}, Shard{.tp = 1}, Shard{.tp = 2}};
  const std::vector<BlockHash> blocks = blocks_of(0, 10);
  const std::size_t there[] = {9, 4, 7};  // blocks of each shard
  for (std::uint16_t rank = 0; rank < 3; ++rank) {
    for (std::size_t i = 0; i < there[rank]; ++i) {
      ASSERT_TRUE(put_one(store(), key_of(1, i, rank)));
    }
  }
  EXPECT_EQ(store().hit_prefix(scope_of(1), shards, blocks), 4u);
  EXPECT_EQ(store().hit_prefix(scope_of(1), std::span(shards).first(1), blocks), 9u);
  EXPECT_EQ(store().hit_prefix(scope_of(1), std::span(shards).last(1), blocks), 7u);
}

TEST_P(StoreConformance, NothingAskedIsNothingHit) {
  const Shard shard;
  const std::vector<BlockHash> blocks = blocks_of(0, 1);
  ASSERT_TRUE(put_one(store(), key_of(1, 0)));
  EXPECT_EQ(store().hit_prefix(scope_of(1), {&shard, 1}, {}), 0u);
  EXPECT_EQ(store().hit_prefix(scope_of(1), {}, blocks), 0u);
}

// --- remove and ping -------------------------------------------------------------

TEST_P(StoreConformance, RemoveTakesOneValueWhosePlaceAnotherCanTake) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1), TestBlock(100, 77)));
  for (const Key& other : {key_of(1, 2), key_of(2, 1), key_of(1, 1, 1)}) {
    ASSERT_TRUE(put_one(store(), other));
  }
  ASSERT_TRUE(store().remove(key_of(1, 1)));
  EXPECT_FALSE(is_there(store(), key_of(1, 1)));
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1))), Code::kMiss);
  EXPECT_EQ(store().stats()->blocks, 3u);
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  for (const Key& key : {key_of(1, 1), key_of(1, 2), key_of(2, 1), key_of(1, 1, 1)}) {
    EXPECT_TRUE(check_one(store(), key));
  }
}

TEST_P(StoreConformance, RemovingWhatIsNotThereIsNoError) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  EXPECT_TRUE(store().remove(key_of(1, 2)));
  EXPECT_TRUE(store().remove(key_of(2, 1)));
  EXPECT_TRUE(check_one(store(), key_of(1, 1)));
}

TEST_P(StoreConformance, AnsweringStoresAnswerAPing) { EXPECT_TRUE(store().ping()); }

// --- purge and remove_all --------------------------------------------------------

TEST_P(StoreConformance, PurgeTakesOneScopeAndLeavesTheOthers) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(put_one(store(), key_of(1, i)));
    ASSERT_TRUE(put_one(store(), key_of(2, i)));
  }
  ASSERT_TRUE(store().purge_scope(scope_of(1), false));
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(code_of(check_one(store(), key_of(1, i))), Code::kMiss);
    EXPECT_FALSE(is_there(store(), key_of(1, i)));
    EXPECT_TRUE(check_one(store(), key_of(2, i)));
  }
}

TEST_P(StoreConformance, APurgedScopeCanBeFilledAnew) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1), TestBlock(100, 77)));
  ASSERT_TRUE(store().purge_scope(scope_of(1), false));
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  EXPECT_TRUE(check_one(store(), key_of(1, 1)));
}

TEST_P(StoreConformance, PurgingForGoodRefusesLatePuts) {
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  ASSERT_TRUE(store().purge_scope(scope_of(1), true));
  EXPECT_EQ(code_of(put_one(store(), key_of(1, 1))), Code::kFenced);
  EXPECT_EQ(code_of(put_one(store(), key_of(1, 2))), Code::kFenced);
  EXPECT_FALSE(is_there(store(), key_of(1, 1)));
  EXPECT_TRUE(put_one(store(), key_of(2, 1)));
  EXPECT_EQ(store().stats()->refused_late_puts, 2u);
  EXPECT_EQ(store().stats()->blocks, 1u);
}

TEST_P(StoreConformance, PurgingWhatIsNotThereIsNoError) {
  EXPECT_TRUE(store().purge_scope(scope_of(9), false));
  EXPECT_TRUE(put_one(store(), key_of(9, 1)));
  EXPECT_TRUE(store().purge_scope(scope_of(8), true));
  EXPECT_EQ(code_of(put_one(store(), key_of(8, 1))), Code::kFenced);
}

TEST_P(StoreConformance, RemoveAllTakesEverythingAndCountsIt) {
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(put_one(store(), key_of(1, i)));
    ASSERT_TRUE(put_one(store(), key_of(2, i)));
  }
  EXPECT_EQ(store().remove_all(), 20u);
  EXPECT_EQ(store().remove_all(), 0u);
  EXPECT_FALSE(is_there(store(), key_of(1, 0)));
  EXPECT_EQ(store().stats()->blocks, 0u);
  EXPECT_TRUE(put_one(store(), key_of(1, 0)));
  EXPECT_TRUE(check_one(store(), key_of(1, 0)));
}

// --- statistics ------------------------------------------------------------------

TEST_P(StoreConformance, StatsCountLiveValuesWithTheirHeaders) {
  EXPECT_EQ(store().stats()->blocks, 0u);
  EXPECT_EQ(store().stats()->bytes, 0u);
  ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
  ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
  ASSERT_TRUE(put_one(store(), key_of(2, 1), 1000));
  EXPECT_EQ(store().stats()->blocks, 2u);
  EXPECT_EQ(store().stats()->bytes, 1100u + 2 * sizeof(ValueHeader));
  EXPECT_EQ(store().stats()->budget_bytes, kBudget);
  ASSERT_TRUE(store().purge_scope(scope_of(2), false));
  EXPECT_EQ(store().stats()->blocks, 1u);
  EXPECT_EQ(store().stats()->bytes, 100u + sizeof(ValueHeader));
}

TEST_P(StoreConformance, ListsTheScopesThatHoldValues) {
  EXPECT_THAT(*store().list_scopes(), IsEmpty());
  store().describe_scope(scope_of(2), "first");
  store().describe_scope(scope_of(2), "weights of step 42");
  store().describe_scope(scope_of(5), "never filled");
  ASSERT_TRUE(put_one(store(), key_of(2, 1), 100));
  ASSERT_TRUE(put_one(store(), key_of(2, 2), 100));
  ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
  EXPECT_THAT(
      *store().list_scopes(),
      ElementsAre(AllOf(Field(&ScopeUsage::scope, scope_of(1)), Field(&ScopeUsage::description, ""),
                        Field(&ScopeUsage::blocks, 1u)),
                  AllOf(Field(&ScopeUsage::scope, scope_of(2)),
                        Field(&ScopeUsage::description, "weights of step 42"),
                        Field(&ScopeUsage::blocks, 2u),
                        Field(&ScopeUsage::bytes, 2 * (100 + sizeof(ValueHeader))))));
  ASSERT_TRUE(store().purge_scope(scope_of(2), true));
  EXPECT_THAT(*store().list_scopes(), ElementsAre(Field(&ScopeUsage::scope, scope_of(1))));
}

TEST_P(StoreConformance, ListsWhoHoldsAScopeUntilTheLeaseEnds) {
  const Duration long_lease = std::chrono::hours(1);
  ASSERT_TRUE(put_one(store(), key_of(1, 1), 100));
  ASSERT_TRUE(store().hold_scope(scope_of(1), "engine-b@host:2", long_lease));
  ASSERT_TRUE(store().hold_scope(scope_of(1), "engine-a@host:1", long_lease));
  ASSERT_TRUE(store().hold_scope(scope_of(1), "engine-a@host:1", long_lease));  // renewed
  ASSERT_TRUE(store().hold_scope(scope_of(2), "engine-b@host:2", long_lease));  // has no values
  const auto listed = [&] { return store().list_scopes().value(); };
  EXPECT_THAT(
      listed(),
      ElementsAre(
          AllOf(Field(&ScopeUsage::scope, scope_of(1)), Field(&ScopeUsage::blocks, 1u),
                Field(&ScopeUsage::holders, ElementsAre("engine-a@host:1", "engine-b@host:2"))),
          AllOf(Field(&ScopeUsage::scope, scope_of(2)), Field(&ScopeUsage::blocks, 0u),
                Field(&ScopeUsage::holders, ElementsAre("engine-b@host:2")))));
  ASSERT_TRUE(store().hold_scope(scope_of(1), "engine-a@host:1", Duration::zero()));
  ASSERT_TRUE(store().hold_scope(scope_of(2), "engine-b@host:2", Duration::zero()));
  ASSERT_TRUE(store().hold_scope(scope_of(3), "nobody", Duration::zero()));
  EXPECT_THAT(listed(), ElementsAre(Field(&ScopeUsage::holders, ElementsAre("engine-b@host:2"))));
}

TEST_P(StoreConformance, HoldsAreNoValues) {
  ASSERT_TRUE(store().hold_scope(scope_of(1), "engine", std::chrono::hours(1)));
  EXPECT_EQ(store().stats()->blocks, 0u);
  EXPECT_EQ(store().remove_all().value(), 0u);
  EXPECT_EQ(code_of(store().hold_scope(scope_of(1), "", std::chrono::hours(1))), Code::kBadRequest);
}

// --- threads -----------------------------------------------------------------------

// Of two writers of a key one may be told that it is busy, while the other writes.
Status put_among_others(KvStore& store, const Key& key, const TestBlock& block) {
  SystemClock clock;
  const Time deadline = clock.now() + std::chrono::seconds(60);
  Status status = put_one(store, key, block);
  while (code_of(status) == Code::kBusy && clock.now() < deadline) {
    status = put_one(store, key, block);
  }
  return status;
}

// Values of several sizes are put, read, purged and evicted by several threads at
// once. A read gives exactly the bytes put under its key, or nothing.
TEST_P(StoreConformance, ThreadsNeverSeeBytesOfAnotherKey) {
  restart(2 << 20);
  constexpr int kRounds = 400;
  std::atomic<int> wrong{0};
  std::atomic<int> read{0};
  const auto size_of = [](std::uint64_t block) { return 100 + block % 5 * 20000; };
  const auto work = [&](int seed) {
    for (int i = 0; i < kRounds; ++i) {
      const std::uint64_t block = (i * 7 + seed) % 60;
      const Key key = key_of(static_cast<std::uint8_t>(i % 3), block);
      if (!put_among_others(store(), key, TestBlock(size_of(block), key.block.event_int()))) {
        ++wrong;
      }
      const Status checked = check_one(store(), key, size_of(block));
      if (checked) ++read;
      if (!checked && checked.error().code != Code::kMiss) ++wrong;
      if (i % 97 == 0 && !store().purge_scope(key.scope, false)) ++wrong;
      if (i % 50 == 0 && !store().stats()) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(read, kRounds);
  const StoreStats stats = *store().stats();
  EXPECT_LE(stats.bytes + stats.bytes_to_free, stats.budget_bytes);
}

TEST_P(StoreConformance, OnlyOneOfSeveralFirstPutsWins) {
  for (std::uint64_t round = 0; round < 50; ++round) {
    const Key key = key_of(1, round);
    std::vector<std::thread> threads;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      threads.emplace_back([&, seed] {
        const Status put = put_among_others(store(), key, TestBlock(3000, seed));
        EXPECT_TRUE(put) << to_string(put.error());
        TestBlock into(3000, 100);
        const Result<GetValue> got = get_one(store(), key, into);
        EXPECT_TRUE(got) << to_string(got.error());
      });
    }
    for (std::thread& thread : threads) thread.join();
    TestBlock into(3000, 100);
    const Result<GetValue> got = get_one(store(), key, into);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->payload_checksum, got->header.checksum);
  }
  EXPECT_EQ(store().stats()->blocks, 50u);
}

TEST_P(StoreConformance, NoPutGetsIntoAScopePurgedForGood) {
  for (std::uint8_t round = 1; round <= 20; ++round) {
    std::atomic<bool> purged{false};
    std::atomic<int> late{0};
    std::thread writer([&] {
      for (std::uint64_t i = 0; i < 200; ++i) {
        const bool after = purged;
        const Status status = put_one(store(), key_of(round, i));
        if (status && after) ++late;
      }
    });
    ASSERT_TRUE(store().purge_scope(scope_of(round), true));
    purged = true;
    writer.join();
    EXPECT_EQ(late, 0);
    for (std::uint64_t i = 0; i < 200; ++i) ASSERT_FALSE(is_there(store(), key_of(round, i)));
  }
  EXPECT_EQ(store().stats()->blocks, 0u);
}

}  // namespace
}  // namespace newmoon
