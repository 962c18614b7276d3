#include "store/memory_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/contain.h"
#include "base/testing/out_of_memory.h"
#include "store/recent_map.h"
#include "store/testing/blocks.h"
#include "store/testing/manual_time.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests

class MemoryStoreTest : public ::testing::Test {
 protected:
  MemoryStore& make(MemoryStoreOptions options) {
    store_.emplace(options, clock_, executor_);
    return *store_;
  }
  // The number of slices it took.
  int free_all() {
    int slices = 0;
    while (executor_.run_one()) ++slices;
    return slices;
  }

  ManualClock clock_;
  ManualExecutor executor_;
  std::optional<MemoryStore> store_;
};

TEST_F(MemoryStoreTest, PurgedBytesCountUntilTheyAreFreed) {
  for (const std::size_t bytes : {1000, 50'000}) {
    MemoryStore& store = make({.budget_bytes = 1 << 20, .free_slice_blocks = 4});
    for (std::uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(put_one(store, key_of(1, i), bytes));
    const StoreStats before = *store.stats();
    EXPECT_EQ(before.bytes_to_free, 0u);
    ASSERT_TRUE(store.purge_scope(scope_of(1), true));
    EXPECT_EQ(store.stats()->bytes, 0u);
    EXPECT_GE(store.stats()->bytes_to_free, before.bytes);
    EXPECT_LE(store.stats()->bytes_to_free, before.budget_bytes);
    ASSERT_TRUE(executor_.run_one());
    EXPECT_LT(store.stats()->bytes_to_free, before.bytes + before.bytes / 2);
    free_all();
    EXPECT_EQ(store.stats()->bytes_to_free, 0u);
  }
}

TEST_F(MemoryStoreTest, APutThatNobodyWaitsForIsRefused) {
  MemoryStore& store = make({.budget_bytes = 1 << 20});
  const TestBlock block(100, 1);
  std::vector<PutItem> items{put_item(key_of(1, 1), block), put_item(key_of(1, 2), block)};
  items[0].not_after = clock_.now();
  items[1].not_after = clock_.now() + std::chrono::nanoseconds(1);
  const std::vector<Status> statuses = store.put(items);
  ASSERT_FALSE(statuses[0]);
  EXPECT_EQ(statuses[0].error().code, Code::kDeadline);
  EXPECT_TRUE(statuses[1]);
  EXPECT_EQ(store.stats()->blocks, 1u);
  EXPECT_EQ(store.stats()->refused_late_puts, 1u);
}

TEST_F(MemoryStoreTest, FreesLargeValuesInSlicesWithAPauseAfterEach) {
  MemoryStore& store = make(
      {.budget_bytes = 16 << 20, .free_slice_blocks = 10, .free_pause = std::chrono::seconds(1)});
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(put_one(store, key_of(1, i), i % 2 == 0 ? 50'000 : 50));
  }
  ASSERT_TRUE(store.purge_scope(scope_of(1), false));
  const int slices = free_all();
  EXPECT_GE(slices, 10);
  EXPECT_LE(slices, 40);
  EXPECT_GE(clock_.now(), std::chrono::seconds(10));
  EXPECT_EQ(store.stats()->bytes_to_free, 0u);
}

TEST_F(MemoryStoreTest, SmallValuesAreFreedWithTheirSlabs) {
  MemoryStore& store = make({.budget_bytes = 256 << 20});
  for (std::uint64_t i = 0; i < 30'000; ++i) ASSERT_TRUE(put_one(store, key_of(1, i), 64));
  ASSERT_TRUE(store.purge_scope(scope_of(1), false));
  EXPECT_LE(free_all(), 20);
  EXPECT_EQ(store.stats()->bytes_to_free, 0u);
}

TEST_F(MemoryStoreTest, AReaderKeepsWhatItReadsWhileItsScopeIsPurgedAndFreed) {
  MemoryStore& store = make({.budget_bytes = 4 << 20});
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    while (!done) {
      const Status checked = check_one(store, key_of(1, 1), 300'000);
      if (!checked && checked.error().code != Code::kMiss) ++wrong;
    }
  });
  for (int i = 0; i < 100; ++i) {
    if (!put_one(store, key_of(1, 1), 300'000)) ++wrong;
    if (!store.purge_scope(scope_of(1), false)) ++wrong;
    if (!put_one(store, key_of(2, i), 300'000)) ++wrong;
  }
  done = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(MemoryStoreTest, APutThatFindsNoRoomFreesWhatWasPurgedBeforeItEvicts) {
  MemoryStore& store = make({.budget_bytes = 1 << 20});
  std::uint64_t filled = 0;
  while (store.stats()->evicted_blocks == 0) {
    ASSERT_TRUE(put_one(store, key_of(1, filled++), 30000));
  }
  ASSERT_TRUE(store.purge_scope(scope_of(1), true));
  for (std::uint64_t i = 0; i + 1 < filled; ++i) {
    ASSERT_TRUE(put_one(store, key_of(2, i), 30000));
  }
  EXPECT_EQ(store.stats()->evicted_blocks, 1u);
  EXPECT_EQ(store.stats()->blocks, filled - 1);
}

TEST_F(MemoryStoreTest, MemoryComesBackWhenTheSizeOfValuesChanges) {
  MemoryStore& store = make({.budget_bytes = 1 << 20});
  for (const std::size_t bytes : {50, 200'000, 3000, 900'000, 64, 40'000}) {
    for (std::uint64_t i = 0; i < (2u << 20) / (bytes + 400); ++i) {
      const Key key = key_of(1, bytes << 20 | i);
      ASSERT_TRUE(put_one(store, key, bytes)) << bytes;
      ASSERT_TRUE(check_one(store, key, bytes)) << bytes;
    }
    const StoreStats stats = *store.stats();
    EXPECT_LE(stats.bytes + stats.bytes_to_free, stats.budget_bytes);
  }
}

TEST_F(MemoryStoreTest, ScopesWhoseLastValueWasEvictedAreForgotten) {
  MemoryStore& store = make({.budget_bytes = 1 << 20});
  for (std::uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(put_one(store, key_of(static_cast<std::uint8_t>(i), i), 100'000));
    free_all();
  }
  const std::size_t scopes = store.list_scopes()->size();
  EXPECT_GT(scopes, 1u);
  EXPECT_LT(scopes, 12u);
  EXPECT_EQ(store.stats()->blocks, scopes);
  ASSERT_TRUE(put_one(store, key_of(0, 1)));
  EXPECT_TRUE(check_one(store, key_of(0, 1)));
}

TEST_F(MemoryStoreTest, AUsedValueGetsASecondChanceOverANewerUnusedOne) {
  MemoryStore& store = make({.budget_bytes = 1 << 20});
  ASSERT_TRUE(put_one(store, key_of(1, 1), 100'000));
  for (std::uint64_t i = 100; i < 200; ++i) {
    ASSERT_TRUE(check_one(store, key_of(1, 1), 100'000)) << i;
    ASSERT_TRUE(put_one(store, key_of(1, i), 100'000));
  }
  EXPECT_TRUE(check_one(store, key_of(1, 1), 100'000));
  EXPECT_FALSE(is_there(store, key_of(1, 100)));
}

TEST_F(MemoryStoreTest, RemembersOnlySoManyScopesPurgedForGood) {
  MemoryStore& store = make({.budget_bytes = 1 << 20, .fenced_scopes_max = 2});
  for (std::uint8_t scope : {1, 2, 3}) ASSERT_TRUE(store.purge_scope(scope_of(scope), true));
  EXPECT_TRUE(put_one(store, key_of(1, 1)));
  EXPECT_FALSE(put_one(store, key_of(2, 1)));
  EXPECT_FALSE(put_one(store, key_of(3, 1)));
}

TEST_F(MemoryStoreTest, CutsDescriptionsAndKeepsTheLatest) {
  MemoryStore& store = make({.budget_bytes = 1 << 20, .descriptions_max = 1});
  store.describe_scope(scope_of(1), "one");
  store.describe_scope(scope_of(2), std::string(5000, 'x'));
  ASSERT_TRUE(put_one(store, key_of(1, 1)));
  ASSERT_TRUE(put_one(store, key_of(2, 1)));
  const std::vector<ScopeUsage> scopes = *store.list_scopes();
  ASSERT_EQ(scopes.size(), 2u);
  EXPECT_EQ(scopes[0].description, "");
  EXPECT_EQ(scopes[1].description, std::string(1024, 'x'));
}

TEST_F(MemoryStoreTest, ATaskThatComesAfterTheStoreDoesNothing) {
  make({.budget_bytes = 1 << 20});
  ASSERT_TRUE(put_one(*store_, key_of(1, 1)));
  ASSERT_TRUE(store_->purge_scope(scope_of(1), true));
  store_.reset();
  EXPECT_EQ(free_all(), 1);
}

TEST_F(MemoryStoreTest, RefusesAValueLargerThanTheBudgetByName) {
  MemoryStore& store = make({.budget_bytes = 1 << 20});
  const Status refused = put_one(store, key_of(1, 1), 1 << 20);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBadRequest);
  EXPECT_NE(refused.error().message.find("--store-bytes"), std::string::npos);
}

// Executor and clock that work at once: what a caller on one thread would use.
TEST(MemoryStore, WorksWithAnInlineExecutor) {
  ManualClock clock;
  InlineExecutor executor;
  MemoryStore store({.budget_bytes = 16 << 20, .free_slice_blocks = 16}, clock, executor);
  for (std::uint64_t i = 0; i < 10'000; ++i) ASSERT_TRUE(put_one(store, key_of(1, i), 50));
  ASSERT_TRUE(store.purge_scope(scope_of(1), true));
  EXPECT_EQ(store.stats()->bytes_to_free, 0u);
}

TEST(MemoryStore, ManyKeysAreFoundWhileAnotherScopeIsFreed) {
  SystemClock clock;
  ThreadExecutor executor("store-free");
  MemoryStore store({.budget_bytes = 256 << 20, .free_pause = Duration::zero()}, clock, executor);
  constexpr std::uint64_t kBlocks = 50'000;
  const TestBlock block(64, 1);
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(put_one(store, key_of(1, i), block));
    ASSERT_TRUE(put_one(store, key_of(2, i), block));
  }
  ASSERT_TRUE(store.purge_scope(scope_of(1), true));
  const Shard shard;
  const std::vector<BlockHash> blocks = blocks_of(0, kBlocks);
  int lookups = 0;
  do {
    ASSERT_EQ(store.hit_prefix(scope_of(2), {&shard, 1}, blocks), kBlocks);
    ++lookups;
  } while (store.stats()->bytes_to_free > 0 && lookups < 10'000);
  EXPECT_EQ(store.stats()->bytes_to_free, 0u);
  EXPECT_EQ(store.stats()->blocks, kBlocks);
}

TEST(RecentMap, ForgetsTheOldest) {
  RecentMap<int, int> map(2);
  map.set(1, 10);
  map.set(2, 20);
  map.set(1, 11);
  map.set(3, 30);
  EXPECT_EQ(map.find(1), nullptr);
  EXPECT_EQ(*map.find(2), 20);
  EXPECT_EQ(*map.find(3), 30);
}

// One of several threads that put the same keys and remove each other's.
void put_and_remove(MemoryStore& store, unsigned worker) {
  const TestBlock block(16 << 10, 7);
  for (std::uint64_t i = 0; i < 3000; ++i) {
    EXPECT_TRUE(put_one(store, key_of(1, i), block));
    EXPECT_TRUE(store.remove(key_of(1, (i * (worker + 1)) % 3000)));
  }
}

// Eviction takes an entry off its queue before it takes it out of the index: a remove
// that comes between the two must leave it to the evictor.
TEST(MemoryStoreThreads, RemovesAndEvictionsOfTheSameValuesDoNotMeet) {
  SystemClock clock;
  InlineExecutor executor;
  MemoryStore store({.budget_bytes = 1 << 20}, clock, executor);
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&store, worker] { put_and_remove(store, worker); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint64_t i = 0; i < 3000; ++i) ASSERT_TRUE(store.remove(key_of(1, i)));
  EXPECT_EQ(store.stats()->blocks, 0u);
  EXPECT_EQ(store.stats()->bytes, 0u);
  EXPECT_EQ(store.stats()->bytes_to_free, 0u);
  EXPECT_TRUE(store.list_scopes()->empty());
}

void run_on_first_cpu() {
  cpu_set_t first;
  CPU_ZERO(&first);
  CPU_SET(0, &first);
  (void)pthread_setaffinity_np(pthread_self(), sizeof first, &first);
}

// A put that found the store full, and then nothing to give up, because other threads had
// freed all of it in between, has room. On one CPU threads are halted in between at times:
// in one of fifteen rounds, before such puts looked again.
TEST(MemoryStoreThreads, PutsFindTheRoomThatOthersJustFreed) {
  SystemClock clock;
  InlineExecutor executor;
  for (int round = 0; round < 40; ++round) {
    MemoryStore store({.budget_bytes = 1 << 20}, clock, executor);
    std::vector<std::thread> threads;
    for (unsigned worker = 0; worker < 3; ++worker) {
      threads.emplace_back([&store, worker] {
        run_on_first_cpu();
        put_and_remove(store, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Whatever breaks off, all that was put can be purged, and its room is there again.
TEST_F(MemoryStoreTest, WithoutMemoryNoRoomIsLost) {
  for (const std::size_t bytes : {1000, 50'000}) {
    bool has_failed = true;
    for (std::size_t count = 0; has_failed; ++count) {
      MemoryStore& store = make({.budget_bytes = 1 << 20, .free_slice_blocks = 4});
      {
        const testing::NoMemoryAfter none(count);
        for (std::uint64_t i = 0; i < 4; ++i) {
          (void)contain([&] { (void)put_one(store, key_of(1 + i % 2, i), bytes); });
        }
        (void)contain([&] { (void)store.purge_scope(scope_of(1), false); });
        (void)contain([&] { free_all(); });
        has_failed = none.has_failed();
      }
      ASSERT_TRUE(put_one(store, key_of(3, 1), bytes));  // so that the last purge frees all
      for (const std::uint64_t scope : {1, 2, 3})
        ASSERT_TRUE(store.purge_scope(scope_of(scope), false));
      free_all();
      EXPECT_EQ(store.stats()->bytes, 0u) << count;
      EXPECT_EQ(store.stats()->bytes_to_free, 0u) << count;
      EXPECT_TRUE(put_one(store, key_of(4, 1), 900'000)) << count;
    }
  }
}

}  // namespace
}  // namespace newmoon
