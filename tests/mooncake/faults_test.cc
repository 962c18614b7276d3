// Upstream's faults on a real Mooncake store, each the way upstream goes, which fails, and
// the way Newmoon goes. Upstream's way is that of its calls on the wheel's client;
// python/tests/test_upstream_faults.py does some of it with upstream's own code.
#include "tests/mooncake/faults_fixture.h"

namespace newmoon::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr const char* kLate = "late put";

// --- a put that began before the reset and ends after it

TEST_F(MooncakeFaultsTest, UpstreamPutAcrossAResetIsFoundAfterIt) {
  const std::string key = UpstreamClient::key("model", 0, 1);
  ASSERT_THAT(upstream_.put_start({key}, 64), ElementsAre(0));
  ASSERT_GE(upstream_.remove_all(), 0);
  ASSERT_THAT(upstream_.put_end({key}), ElementsAre(0));
  EXPECT_TRUE(upstream_.exists(key));  // KV of the old weights, under the key of the new ones
}

TEST_F(MooncakeFaultsTest, PutAcrossAFenceIsNotFoundAfterIt) {
  const MooncakeEngine engine = start();
  engine->faults().add_rule({.op = FaultRule::Op::kPut, .hold = kLate});
  ASSERT_TRUE(engine->add("before", SeedEngine::prompt(0), SeedEngine::kMaxTokens));
  wait_for_held_put(engine, kLate, kRanks);
  EXPECT_TRUE(reset(engine).success);
  ASSERT_TRUE(engine->update_weights(kNew));
  engine->faults().release(kLate);
  engine->run();
  ASSERT_TRUE(eventually([&] { return !keys().empty(); }));  // they arrived
  EXPECT_EQ(ask(engine, kNew), 0u);
  EXPECT_EQ(ask_store(engine, kNew), kHit);  // its own
}

TEST_F(MooncakeFaultsTest, RemoveAllIsRefusedWhileAPutIsUnderWay) {
  const MooncakeEngine engine = start({.reset_mode = ResetMode::kRemoveAll});
  const std::string key = UpstreamClient::key("model", 0, 1);
  ASSERT_THAT(upstream_.put_start({key}, 64), ElementsAre(0));
  EXPECT_FALSE(reset(engine).success);
  ASSERT_THAT(upstream_.put_end({key}), ElementsAre(0));
  EXPECT_TRUE(reset(engine).success);
  EXPECT_FALSE(upstream_.exists(key));
}

// --- a save queued on rank 1 of 2

TEST_F(MooncakeFaultsTest, UpstreamDrainsRank0AndMixesTheWeightsOfTwoRanks) {
  const std::string rank0 = UpstreamClient::key("model", 0, 1);
  const std::string rank1 = UpstreamClient::key("model", 1, 1);
  ASSERT_EQ(upstream_.put(rank0, "old"), 0);  // drained: rank 1's put is still in its queue
  ASSERT_GE(upstream_.remove_all(), 0);
  ASSERT_EQ(upstream_.put(rank1, "old"), 0);  // now it is not
  ASSERT_EQ(upstream_.put(rank0, "new"), 0);
  ASSERT_EQ(upstream_.put(rank1, "new"), 0);  // answers 0 and changes nothing: the first one stays
  EXPECT_THAT(upstream_.exist({rank0, rank1}), Each(1));  // a hit on every rank
  EXPECT_EQ(upstream_.get(rank0), "new");
  EXPECT_EQ(upstream_.get(rank1), "old");
}

TEST_F(MooncakeFaultsTest, SaveQueuedOnRank1IsNotFoundAfterAFence) {
  const MooncakeEngine engine = start();
  engine->faults().add_rule({.op = FaultRule::Op::kPut, .rank = std::uint16_t{1}, .hold = kLate});
  ASSERT_TRUE(engine->add("before", SeedEngine::prompt(0), SeedEngine::kMaxTokens));
  wait_for_held_put(engine, kLate, 1);
  EXPECT_TRUE(reset(engine).success);
  ASSERT_TRUE(engine->update_weights(kNew));
  engine->faults().release(kLate);
  engine->run();
  EXPECT_EQ(ask(engine, kNew), 0u);
  EXPECT_EQ(ask_store(engine, kNew), kHit);
}

TEST_F(MooncakeFaultsTest, RemoveAllDrainsEveryRank) {
  const MooncakeEngine engine = start({.reset_mode = ResetMode::kRemoveAll});
  engine->faults().add_rule({.op = FaultRule::Op::kPut, .rank = std::uint16_t{1}, .hold = kLate});
  ASSERT_TRUE(engine->add("before", SeedEngine::prompt(0), SeedEngine::kMaxTokens));
  wait_for_held_put(engine, kLate, 1);
  EXPECT_FALSE(reset(engine, std::chrono::seconds(1)).success);
  engine->faults().release(kLate);
  engine->run();
  EXPECT_TRUE(reset(engine).success);
  EXPECT_EQ(engine->values_in_store(), 0u);
}

// --- an engine with old weights writes after another's reset

TEST_F(MooncakeFaultsTest, UpstreamFindsWhatAnEngineWithOldWeightsWrote) {
  UpstreamClient other(master_);
  const std::string key = UpstreamClient::key("model", 0, 1);
  ASSERT_GE(upstream_.remove_all(), 0);
  ASSERT_EQ(other.put(key, "old"), 0);  // not updated yet
  ASSERT_TRUE(upstream_.exists(key));
  EXPECT_EQ(upstream_.get(key), "old");
}

TEST_F(MooncakeFaultsTest, WhatAnEngineWithOldWeightsWritesIsNotFound) {
  const MooncakeEngine updated = start();
  const MooncakeEngine late = start();
  EXPECT_TRUE(reset(updated).success);
  ASSERT_TRUE(updated->update_weights(kNew));
  EXPECT_EQ(ask(late, kOld), 0u);
  ASSERT_EQ(updated->wait_for_values(kValues), kValues);
  EXPECT_EQ(ask(updated, kNew), 0u);
  EXPECT_EQ(ask_store(late, kOld), kHit);  // to it they are right
  ASSERT_TRUE(late->update_weights(kNew));
  EXPECT_EQ(ask(late, kNew), kHit);  // and now it finds what the other computed
}

// --- another model's keys on the same master

TEST_F(MooncakeFaultsTest, UpstreamResetTakesAnotherModelsKeysAlong) {
  const std::string own = UpstreamClient::key("model", 0, 1);
  const std::string others = UpstreamClient::key("another-model", 0, 1);
  ASSERT_EQ(upstream_.put(own, "own"), 0);
  ASSERT_EQ(upstream_.put(others, "other"), 0);
  EXPECT_EQ(upstream_.remove_all(), 2);
  EXPECT_THAT(upstream_.exist({own, others}), Each(0));
}

TEST_F(MooncakeFaultsTest, ResetLeavesAnotherModelsKeys) {
  const std::string others = UpstreamClient::key("another-model", 0, 1);
  ASSERT_EQ(upstream_.put(others, "other"), 0);
  // Weights that nothing names: what the reset leaves behind is purged.
  const MooncakeEngine engine = start({.identity = IdentityMode::kUnique});
  EXPECT_EQ(ask(engine, kOld), 0u);
  ASSERT_EQ(engine->wait_for_values(kValues), kValues);
  EXPECT_TRUE(reset(engine).success);
  EXPECT_EQ(engine->wait_for_values(0), 0u);
  ASSERT_TRUE(upstream_.exists(others));
  EXPECT_EQ(upstream_.get(others), "other");
}

TEST_F(MooncakeFaultsTest, FencesAndPurgesLeaveAnotherModelsHitRate) {
  constexpr int kPrompts = 4;
  const std::string upstreams = UpstreamClient::key("another-model", 0, 1);
  ASSERT_EQ(upstream_.put(upstreams, "theirs"), 0);
  const MooncakeEngine other = start({.layers = 4});  // the same namespace
  for (int i = 0; i < kPrompts; ++i) ask(other, kOld, i);
  const auto hit_tokens = [&] {
    std::uint64_t tokens = 0;
    for (int i = 0; i < kPrompts; ++i) tokens += ask_store(other, kOld, i);
    return tokens;
  };
  ASSERT_EQ(hit_tokens(), kPrompts * kHit);
  const std::uint64_t others_values = keys().size();
  // Its fences purge, as nothing names its weights.
  const MooncakeEngine fenced = start({.identity = IdentityMode::kUnique});
  for (std::uint64_t weights = kOld; weights < kOld + 3; ++weights) {
    EXPECT_EQ(ask(fenced, weights), 0u);  // the other's KV of the same prompt is not its
    ASSERT_EQ(fenced->wait_for_values(others_values + kValues), others_values + kValues);
    EXPECT_TRUE(reset(fenced).success);
    EXPECT_EQ(fenced->wait_for_values(others_values), others_values);
    EXPECT_EQ(hit_tokens(), kPrompts * kHit);
    EXPECT_EQ(upstream_.get(upstreams), "theirs");
    ASSERT_TRUE(fenced->update_weights(weights + 1));
  }
}

// --- two engines, one fenced

TEST_F(MooncakeFaultsTest, UpstreamResetEmptiesTheOtherEnginesCache) {
  UpstreamClient other(master_);
  const std::vector<std::string> keys = {UpstreamClient::key("model", 0, 1),
                                         UpstreamClient::key("model", 0, 2)};
  for (const std::string& key : keys) ASSERT_EQ(other.put(key, "right"), 0);
  ASSERT_THAT(other.exist(keys), Each(1));
  EXPECT_EQ(upstream_.remove_all(), 2);
  EXPECT_THAT(other.exist(keys), Each(0));  // its weights have not changed
}

TEST_F(MooncakeFaultsTest, FenceOfOneEngineLeavesTheOthersHitRate) {
  constexpr int kPrompts = 4;
  const MooncakeEngine fenced = start();
  const MooncakeEngine other = start();
  for (int i = 0; i < kPrompts; ++i) ask(other, kOld, i);
  const auto hit_tokens = [&] {
    std::uint64_t tokens = 0;
    for (int i = 0; i < kPrompts; ++i) tokens += ask_store(other, kOld, i);
    return tokens;
  };
  const std::uint64_t before = hit_tokens();
  EXPECT_EQ(before, kPrompts * kHit);
  for (std::uint64_t weights = kNew; weights < kNew + 3; ++weights) {
    EXPECT_TRUE(reset(fenced).success);
    ASSERT_TRUE(fenced->update_weights(weights));
    EXPECT_EQ(ask(fenced, weights), 0u);
    EXPECT_EQ(hit_tokens(), before);
  }
}

// --- a client's hot cache, which the wheel turns on by the environment

struct HotCacheOfEveryClient {
  HotCacheOfEveryClient() {
    setenv("MC_STORE_LOCAL_HOT_CACHE_SIZE", "16777216", 1);
    setenv("MC_STORE_LOCAL_HOT_BLOCK_SIZE", "65536", 1);
    setenv("MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD", "1", 1);
  }
  ~HotCacheOfEveryClient() {
    unsetenv("MC_STORE_LOCAL_HOT_CACHE_SIZE");
    unsetenv("MC_STORE_LOCAL_HOT_BLOCK_SIZE");
    unsetenv("MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD");
  }
};

class HotCopiesTest : HotCacheOfEveryClient, public MooncakeFaultsTest {};

TEST_F(HotCopiesTest, UpstreamReadsACopyOfTheOldValueAfterAReset) {
  UpstreamClient reader(master_);
  std::vector<std::string> keys;  // what lies in the reader's own memory is not copied
  for (int block = 0; block < 16; ++block) keys.push_back(UpstreamClient::key("model", 0, block));
  for (const std::string& key : keys) ASSERT_EQ(upstream_.put(key, "old"), 0);
  const auto read_old = [&] {
    return std::ranges::count_if(keys, [&](const auto& key) { return reader.get(key) == "old"; });
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(read_old(), std::ssize(keys));
  EXPECT_EQ(upstream_.remove_all(), std::ssize(keys));
  for (const std::string& key : keys) ASSERT_EQ(upstream_.put(key, "new"), 0);
  EXPECT_GT(read_old(), 0);
}

TEST_F(HotCopiesTest, CopiesOfOldWeightsAreNotRead) {
  const MooncakeEngine writer = start();
  // Who lends nothing has every value from the wheel.
  const MooncakeEngine reader = start_on(join({}, "0"), {});
  EXPECT_EQ(ask(writer, kOld), 0u);
  ASSERT_EQ(writer->wait_for_values(kValues), kValues);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask_store(reader, kOld), kHit);  // now they are hot
  ASSERT_TRUE(writer->update_weights(kNew));
  ASSERT_TRUE(reader->update_weights(kNew));
  EXPECT_EQ(ask(reader, kNew), 0u);
  EXPECT_EQ(ask(writer, kNew), kHit);
}

}  // namespace
}  // namespace newmoon::testing
