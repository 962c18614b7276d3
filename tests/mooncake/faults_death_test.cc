// As faults_test.cc: who dies, master or writer, and what they leave behind.
#include <set>

#include "tests/mooncake/faults_fixture.h"

namespace newmoon::testing {
namespace {

using ::testing::ElementsAre;

using std::chrono::seconds;

// --- the master is killed during a reset, and comes back

// Around a store: the master dies when remove_all() is called, after it was.
class MasterDiesStore final : public KvStore {
 public:
  MasterDiesStore(std::unique_ptr<KvStore> inner, MooncakeMaster& master)
      : inner_(std::move(inner)), master_(master) {}

  std::vector<Status> put(std::span<const PutItem> items) override { return inner_->put(items); }
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override {
    return inner_->get(items);
  }
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override {
    return inner_->hit_prefix(scope, shards, blocks);
  }
  Status remove(const Key& key) override { return inner_->remove(key); }
  Status purge_scope(const ScopeId& scope, bool for_good) override {
    return inner_->purge_scope(scope, for_good);
  }
  void describe_scope(const ScopeId& scope, const std::string& description) override {
    inner_->describe_scope(scope, description);
  }
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override {
    return inner_->hold_scope(scope, holder, lease);
  }
  Result<std::uint64_t> remove_all() override {
    if (!std::exchange(has_died_, true)) master_.kill();
    return inner_->remove_all();
  }
  Status ping() override { return inner_->ping(); }
  Result<StoreStats> stats() override { return inner_->stats(); }
  Result<std::vector<ScopeUsage>> list_scopes() override { return inner_->list_scopes(); }
  bool reads_are_atomic() const override { return inner_->reads_are_atomic(); }

 private:
  const std::unique_ptr<KvStore> inner_;
  MooncakeMaster& master_;
  bool has_died_ = false;
};

// And so upstream, which waits for an exception, acks it: python/tests/test_upstream_faults.py.
TEST_F(MooncakeFaultsTest, UpstreamsRemoveAllOfADeadMasterIsACodeAndNoException) {
  ASSERT_EQ(upstream_.put(UpstreamClient::key("model", 0, 1), "old"), 0);
  master_.kill();
  EXPECT_LT(upstream_.remove_all(), 0);
}

TEST_F(MooncakeFaultsTest, RemoveAllOfAMasterThatDiesIsFalseAndItsReturnIsNoticed) {
  const MooncakeEngine engine = start_on(std::make_unique<MasterDiesStore>(join(), master_),
                                         {.reset_mode = ResetMode::kRemoveAll});
  EXPECT_EQ(ask(engine, kOld), 0u);
  ASSERT_EQ(engine->wait_for_values(kValues), kValues);
  const CacheResetAnswer answer = reset(engine);
  EXPECT_FALSE(answer.success);
  EXPECT_NE(answer.error, "");
  EXPECT_EQ(ask(engine, kOld, 1), 0u);  // serves on
  ASSERT_TRUE(master_.restart());
  EXPECT_TRUE(eventually([&] { return reset(engine).success; }));
  EXPECT_EQ(engine->values_in_store(), 0u);
  ASSERT_TRUE(engine->update_weights(kNew));
  EXPECT_TRUE(eventually([&] { return ask_store(engine, kNew) == kHit; }));  // the cache is back
}

TEST_F(MooncakeFaultsTest, FenceNeedsNoMaster) {
  const MooncakeEngine engine = start();
  EXPECT_EQ(ask(engine, kOld), 0u);
  master_.kill();
  EXPECT_TRUE(reset(engine).success);
  ASSERT_TRUE(engine->update_weights(kNew));
  const Time started = engine->now();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ask(engine, kNew, i), 0u);
  // The wheel alone takes 4.3 s a call.
  EXPECT_LT(engine->now() - started, 4 * seconds(4));
  ASSERT_TRUE(master_.restart());
  EXPECT_TRUE(eventually([&] { return ask_store(engine, kNew) == kHit; }));
}

// --- a writer is killed between start and end of a put; a key stuck in PROCESSING

TEST_F(MooncakeFaultsTest, UpstreamPutOfAStuckKeySaysItIsStoredAndIsNot) {
  const std::string key = UpstreamClient::key("model", 0, 1);
  UpstreamClient writer(master_);
  ASSERT_THAT(writer.put_start({key}, 64), ElementsAre(0));
  writer.die();
  EXPECT_EQ(upstream_.put(key, "new"), 0);
  EXPECT_FALSE(upstream_.exists(key));
}

// The keys that an engine of these weights will put for prompt 0.
class StuckKeysTest : public MooncakeFaultsTest {
 protected:
  StuckKeysTest() {
    const MooncakeEngine engine = start();
    EXPECT_EQ(ask(engine, kOld), 0u);
    EXPECT_EQ(engine->wait_for_values(kValues), kValues);
    keys_ = keys();
    const StoreStats stats = *engine.store->stats();
    value_bytes_ = stats.bytes / stats.blocks;
    EXPECT_GE(upstream_.remove_all(), static_cast<int>(kValues));  // and records of scopes
  }

  void stick(UpstreamClient& writer) {
    ASSERT_EQ(writer.put_start(keys_, value_bytes_), std::vector<int>(keys_.size(), 0));
  }
  void end(UpstreamClient& writer) {
    ASSERT_EQ(writer.put_end(keys_), std::vector<int>(keys_.size(), 0));
  }

  std::vector<std::string> keys_;
  std::uint64_t value_bytes_ = 0;
};

TEST_F(StuckKeysTest, PutOfAStuckKeyIsBusy) {
  stick(upstream_);
  const auto store = join();
  const Key key = *parse_key(keys_[0]);
  const Bytes payload(32, 7);
  const ConstFragment fragment = payload;
  const PutItem item{.key = key,
                     .header = make_header(key, LayoutId{}, payload.size()),
                     .payload = {&fragment, 1}};
  const std::vector<Status> put = store->put({&item, 1});
  ASSERT_FALSE(put[0]);
  EXPECT_EQ(put[0].error().code, Code::kBusy);
}

TEST_F(StuckKeysTest, EngineServesOnAndSavesOnceTheMasterGivesTheKeysUp) {
  {
    UpstreamClient writer(master_);
    stick(writer);
    writer.die();
  }
  const MooncakeEngine engine = start();
  EXPECT_EQ(ask(engine, kOld), 0u);
  EXPECT_EQ(ask_store(engine, kOld), 0u);  // neither hit nor hang
  EXPECT_TRUE(eventually([&] { return ask_store(engine, kOld) == kHit; }));
}

// What was never written becomes readable: not KV, and so not used.
TEST_F(StuckKeysTest, PutThatEndsWithoutItsBytesIsNoHit) {
  stick(upstream_);
  end(upstream_);
  ASSERT_EQ(keys().size(), keys_.size());
  const MooncakeEngine engine = start();
  ask(engine, kOld);  // checks the answer
  EXPECT_GT(engine->stack().worker(0).stats().corrupt_blocks, 0u);
  EXPECT_TRUE(eventually([&] { return ask_store(engine, kOld) == kHit; }));  // replaced
}

// A put into a scope that was purged meanwhile: gone as well, a little later.
TEST_F(StuckKeysTest, PurgeTakesWhatWasBeingWrittenToo) {
  const auto store = join({.recheck_delays = {seconds(3)}});
  const std::string readable = keys_.back();
  keys_.pop_back();
  ASSERT_EQ(upstream_.put(readable, "value"), 0);
  stick(upstream_);
  ASSERT_TRUE(store->purge_scope(parse_key(readable)->scope, true));
  ASSERT_TRUE(eventually([&] { return keys().empty(); }));  // the purge has been there
  end(upstream_);
  EXPECT_EQ(keys().size(), keys_.size());
  EXPECT_TRUE(eventually([&] { return keys().empty(); }));
}

}  // namespace
}  // namespace newmoon::testing
