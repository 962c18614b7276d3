// What holds for backends with a budget of their own: they make room by giving up values at
// once. (Mooncake gives up values behind, by its master's watermark and leases:
// store/mooncake/mooncake_store_test.cc.)
#include <gtest/gtest.h>

#include "store/testing/backends.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests

class StoreBudget : public StoreConformance {};

INSTANTIATE_TEST_SUITE_P(Backends, StoreBudget,
                         ::testing::Values(Backend{"memory", make_memory},
                                           Backend{"faulty", make_faulty},
                                           Backend{"ipc", make_ipc}),
                         name_of_backend);

TEST_P(StoreBudget, StaysWithinItsBudgetByGivingUpOldValues) {
  restart(1 << 20);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(put_one(store(), key_of(1, i), 50000));
  const StoreStats stats = *store().stats();
  EXPECT_LE(stats.bytes + stats.bytes_to_free, stats.budget_bytes);
  EXPECT_EQ(stats.blocks + stats.evicted_blocks, 100u);
  EXPECT_GE(stats.blocks, 10u);
  EXPECT_TRUE(check_one(store(), key_of(1, 99), 50000));
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 0), 50000)), Code::kMiss);
}

TEST_P(StoreBudget, GivesUpWhatWasUsedLeastRecently) {
  restart(1 << 20);
  std::uint64_t filled = 0;
  while (store().stats()->evicted_blocks == 0) {
    ASSERT_TRUE(put_one(store(), key_of(1, filled++), 50000));
  }
  restart(1 << 20);
  for (std::uint64_t i = 0; i + 1 < filled; ++i) {
    ASSERT_TRUE(put_one(store(), key_of(1, i), 50000));
  }
  EXPECT_TRUE(check_one(store(), key_of(1, 0), 50000));  // used by get
  EXPECT_TRUE(is_there(store(), key_of(1, 2)));          // used by hit_prefix
  ASSERT_TRUE(put_one(store(), key_of(2, 1), 50000));
  ASSERT_TRUE(put_one(store(), key_of(2, 2), 50000));
  const TestBlock block(50000, 1);
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 1), 50000)), Code::kMiss);
  EXPECT_EQ(code_of(check_one(store(), key_of(1, 3), 50000)), Code::kMiss);
  EXPECT_TRUE(check_one(store(), key_of(1, 0), 50000));
  EXPECT_TRUE(check_one(store(), key_of(1, 2), 50000));
}

TEST_P(StoreBudget, RemovedValuesAreNotEvictedToo) {
  restart(1 << 20);
  for (std::uint64_t i = 0; i < 32; ++i) ASSERT_TRUE(put_one(store(), key_of(1, i), 16 << 10));
  for (const std::uint64_t i : {0, 1, 15, 16, 31}) ASSERT_TRUE(store().remove(key_of(1, i)));
  EXPECT_EQ(store().stats()->blocks, 27u);
  for (std::uint64_t i = 100; i < 300; ++i) ASSERT_TRUE(put_one(store(), key_of(2, i), 16 << 10));
  const Result<StoreStats> stats = store().stats();
  EXPECT_EQ(stats->blocks + stats->evicted_blocks, 227u);
  EXPECT_TRUE(check_one(store(), key_of(2, 299), 16 << 10));
}

TEST_P(StoreBudget, AValueLargerThanTheBudgetIsRefusedAndNothingIsGivenUp) {
  restart(1 << 20);
  ASSERT_TRUE(put_one(store(), key_of(1, 1)));
  const Status refused = put_one(store(), key_of(1, 2), 2 << 20);
  EXPECT_FALSE(refused);
  EXPECT_TRUE(check_one(store(), key_of(1, 1)));
}

}  // namespace
}  // namespace newmoon
