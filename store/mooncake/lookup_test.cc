#include "store/mooncake/lookup.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "store/mooncake/testing/fake_client.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests

// Two shards, so that a block has two keys.
class LookupTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 1000;
  static constexpr Shard kShards[] = {Shard{.tp = 0}, Shard{.tp = 1}};

  std::string text(std::uint64_t block, std::uint16_t rank = 0) {
    return key_of(1, block, rank).to_string();
  }
  void fill(std::size_t blocks) {
    MutexLock lock(fake_.mutex);
    for (std::uint64_t i = 0; i < blocks; ++i) {
      for (const std::uint16_t rank : {0, 1}) fake_.values[text(i, rank)] = "value";
    }
  }
  void lose(const std::string& key) {
    MutexLock lock(fake_.mutex);
    fake_.values.erase(key);
  }
  void fail(const std::string& key, std::int64_t code) {
    MutexLock lock(fake_.mutex);
    fake_.key_codes[key] = code;
  }
  void raise(const std::string& what) {
    MutexLock lock(fake_.mutex);
    fake_.raises = what;
  }
  Result<std::size_t> hits(std::size_t blocks = kBlocks) {
    Lookup lookup(scope_of(1), kShards, blocks_of(0, blocks));
    for (std::size_t call = lookup.calls(); call > 0; --call) lookup.ask(client_, call - 1);
    return lookup.hits();
  }

  const std::shared_ptr<FakeMooncake> shared_fake_ = std::make_shared<FakeMooncake>();
  FakeMooncake& fake_ = *shared_fake_;
  FakeMooncakeClient client_{shared_fake_};
};

TEST_F(LookupTest, CountsToTheFirstBlockThatLacksAShard) {
  fill(kBlocks);
  EXPECT_EQ(hits(), kBlocks);
  EXPECT_EQ(hits(10), 10u);
  for (const std::uint64_t lost : {999, 998, 500, 499, 3, 1, 0}) {
    lose(text(lost, lost % 2));
    EXPECT_EQ(hits(), lost);
    EXPECT_EQ(hits(10), std::min<std::size_t>(lost, 10));
  }
}

TEST_F(LookupTest, AnErrorCountsIfItComesBeforeTheFirstMiss) {
  fill(kBlocks);
  fail(text(600), -900);
  EXPECT_EQ(hits().error().code, Code::kUnavailable);
  lose(text(601));
  EXPECT_EQ(hits().error().code, Code::kUnavailable);
  lose(text(599));
  EXPECT_EQ(hits(), 599u);
}

TEST_F(LookupTest, InABlockTheFirstShardSaysWhetherItIsAMissOrAnError) {
  fill(kBlocks);
  lose(text(7, 0));
  fail(text(7, 1), -900);
  EXPECT_EQ(hits(), 7u);
  lose(text(5, 1));
  fail(text(5, 0), -900);
  EXPECT_EQ(hits().error().code, Code::kUnavailable);
}

TEST_F(LookupTest, OneCallThatFailsFailsTheLookup) {
  fill(kBlocks);
  for (const std::size_t failing : {0, 1}) {
    Lookup lookup(scope_of(1), kShards, blocks_of(0, kBlocks));
    lookup.ask(client_, 1 - failing);
    raise("RuntimeError: no");
    lookup.ask(client_, failing);
    raise("");
    EXPECT_EQ(lookup.hits().error().code, Code::kInternal);
  }
}

TEST_F(LookupTest, TwoCallsFrom1025KeysOn) {
  for (const std::size_t keys : {1023, 1024, 1025, 1026}) {
    Lookup lookup(scope_of(1), {kShards, 1}, blocks_of(0, keys));
    EXPECT_EQ(lookup.calls(), keys <= 1024 ? 1u : 2u);
    for (std::size_t call = 0; call < lookup.calls(); ++call) lookup.ask(client_, call);
    EXPECT_EQ(lookup.hits(), 0u);
    MutexLock lock(fake_.mutex);
    std::set<std::string> asked;
    for (const auto& call : fake_.looked_at) asked.insert(call.begin(), call.end());
    EXPECT_EQ(asked.size(), keys);
    fake_.looked_at.clear();
  }
}

// Map by map, and no map by both calls, but for one.
TEST_F(LookupTest, LongOnesGoThroughTheMastersMaps) {
  hits();
  MutexLock lock(fake_.mutex);
  ASSERT_EQ(fake_.looked_at.size(), 2u);
  std::vector<std::size_t> maps;
  for (const auto& call : {fake_.looked_at[1], fake_.looked_at[0]}) {  // as hits() asks
    EXPECT_EQ(call.size(), kBlocks);
    for (const std::string& key : call) maps.push_back(std::hash<std::string>{}(key) % 1024);
  }
  EXPECT_TRUE(std::ranges::is_sorted(maps));
}

}  // namespace
}  // namespace newmoon
