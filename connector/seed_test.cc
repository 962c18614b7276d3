// The seed's tests of its connector (vLLM PR 42694), under its names. There sub-objects
// are mocks; here they are real: two ranks with workers, threads and ZeroMQ sockets over
// one memory store.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <future>
#include <thread>

#include "admin/lookup_key_client.h"
#include "admin/lookup_key_server.h"
#include "base/testing/raw_zmq_socket.h"
#include "base/testing/temp_dir.h"
#include "base/zmq_transport.h"
#include "connector/store_connector.h"
#include "connector/testing/jobs.h"
#include "connector/testing/ranks_fixture.h"
#include "store/memory_store.h"

namespace newmoon::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The memory store, with a gate before each rank's puts, a journal, and a remove_all() that can
// fail as a dead master makes it.
class JournalStore final : public KvStore {
 public:
  explicit JournalStore(KvStore& store) : store_(store) {}

  std::array<std::shared_future<void>, 2> gates;  // by rank; if set, its puts wait for it
  std::atomic<std::size_t> puts_at_gate = 0;
  std::atomic<bool> master_is_dead = false;

  std::vector<std::string> journal() const {
    MutexLock lock(mutex_);
    return journal_;
  }

  std::vector<Status> put(std::span<const PutItem> items) override {
    ++puts_at_gate;
    const std::shared_future<void>& gate = gates.at(items.front().key.shard.tp);
    if (gate.valid()) gate.wait();
    std::vector<Status> statuses = store_.put(items);
    note("put");
    return statuses;
  }
  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override {
    return store_.get(items);
  }
  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override {
    return store_.hit_prefix(scope, shards, blocks);
  }
  Status remove(const Key& key) override { return store_.remove(key); }
  Status purge_scope(const ScopeId& scope, bool for_good) override {
    return store_.purge_scope(scope, for_good);
  }
  void describe_scope(const ScopeId& scope, const std::string& description) override {
    store_.describe_scope(scope, description);
  }
  Status hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) override {
    return store_.hold_scope(scope, holder, lease);
  }
  Result<std::uint64_t> remove_all() override {
    note("remove_all");
    if (master_is_dead) return fail(Code::kUnavailable, "remove_all: -900");
    return store_.remove_all();
  }
  Status ping() override { return store_.ping(); }
  Result<StoreStats> stats() override { return store_.stats(); }
  Result<std::vector<ScopeUsage>> list_scopes() override { return store_.list_scopes(); }
  bool reads_are_atomic() const override { return store_.reads_are_atomic(); }

 private:
  void note(const std::string& what) {
    MutexLock lock(mutex_);
    journal_.push_back(what);
  }

  KvStore& store_;
  mutable Mutex mutex_;
  std::vector<std::string> journal_ NM_GUARDED_BY(mutex_);
};

// A worker with its threads, behind a socket of its own.
class SocketRank {
 public:
  SocketRank(const StoreWorker::Options& options, KvStore& store, std::string endpoint)
      : worker_(options, store, memory_, clock_, send_, receive_) {
    auto zmq = ZmqServer::start(endpoint, [this](Frames message, ReplyFn reply) {
      server_.handle(std::move(message), std::move(reply));
    });
    EXPECT_TRUE(zmq) << zmq.error().message;
    zmq_ = std::move(*zmq);
  }
  ~SocketRank() {
    stop();
    worker_.close();
  }

  StoreWorker& worker() { return worker_; }
  std::uint64_t requests() const { return server_.stats().requests; }
  void stop() { zmq_->stop(); }

 private:
  SystemClock clock_;
  VectorBlockMemory memory_{16};
  StoreWorker worker_;
  LookupKeyServer server_{worker_, LookupKeyServer::Options{}, lookups_, lookups_};
  std::unique_ptr<ZmqServer> zmq_;
  // Last, so that they end before what their tasks use does.
  ThreadExecutor lookups_{"lookup"};
  ThreadExecutor send_{"save"};
  ThreadExecutor receive_{"load"};
};

class SeedTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kRanks = 2;

  SeedTest() {
    StoreWorker::Options options;
    options.all_shards = {Shard{.tp = 0}, Shard{.tp = 1}};
    std::vector<std::string> endpoints;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      options.rank = rank;
      options.shard = options.all_shards[rank];
      endpoints.push_back(directory_.endpoint("rank" + std::to_string(rank)));
      ranks_.push_back(std::make_unique<SocketRank>(options, store_, endpoints.back()));
    }
    auto transport = ZmqClientTransport::connect(endpoints, clock_);
    EXPECT_TRUE(transport) << transport.error().message;
    transport_ = std::move(*transport);
    client_ = std::make_unique<LookupKeyClient>(*transport_, clock_, LookupKeyClient::Options{});
    fence_.adopt(DigestIdentity{{1}});
    use_mode(ResetMode::kFence);
  }

  void use_mode(ResetMode mode) {
    scheduler_ = std::make_unique<StoreScheduler>(StoreScheduler::Options{.reset_mode = mode},
                                                  fence_, *client_, pins_);
  }
  StoreConnector connector() { return StoreConnector::for_scheduler(*scheduler_); }
  Time in(Duration delay) const { return clock_.now() + delay; }

  // What a step computes of a request's first `count` blocks, saved by every rank.
  ConnectorMetadata save(int count) {
    std::vector<BlockHash> chain;
    std::vector<BlockId> blocks;
    for (BlockId block = 1; block <= count; ++block) {
      chain.push_back(test_hash(block));
      blocks.push_back(block);
      pins_.births[block] = fence_.epoch();
    }
    const RequestProgress progress{"writer", static_cast<std::uint32_t>(count) * 16, chain, blocks};
    ConnectorMetadata metadata = scheduler_->build_connector_meta({&progress, 1});
    for (auto& rank : ranks_) rank->worker().wait_for_save(metadata);
    return metadata;
  }
  void drain() {
    for (auto& rank : ranks_) {
      std::promise<void> drained;
      rank->worker().drain([&](const Result<FenceAck>&) { drained.set_value(); });
      drained.get_future().wait();
    }
  }
  std::uint64_t stored() { return store_.stats()->blocks; }

  TempDir directory_;
  SystemClock clock_;
  ThreadExecutor freeing_{"free"};
  MemoryStore memory_store_{MemoryStoreOptions{.budget_bytes = 1 << 20}, clock_, freeing_};
  JournalStore store_{memory_store_};
  std::vector<std::unique_ptr<SocketRank>> ranks_;
  std::unique_ptr<ZmqClientTransport> transport_;
  std::unique_ptr<LookupKeyClient> client_;
  Fence fence_{{"run", "model", "layout", Incarnation{{7}}}};
  FakePins pins_;
  std::unique_ptr<StoreScheduler> scheduler_;
};

// 1
TEST_F(SeedTest, test_reset_cache_scheduler_role_delegates_to_reset_store) {
  fence_.reset(false);
  const std::optional<ResetAnswer> answer = connector().reset_cache(in(5s));
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->success);
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->requests(), 1u);  // once, and every rank
    EXPECT_EQ(rank->worker().status().floor, fence_.epoch());
  }
}

// 2
TEST_F(SeedTest, test_reset_cache_scheduler_role_propagates_failure) {
  use_mode(ResetMode::kRemoveAll);
  store_.master_is_dead = true;
  const std::optional<ResetAnswer> answer = connector().reset_cache(in(5s));
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->success);
}

// 3
TEST_F(SeedTest, test_reset_cache_worker_role_returns_none) {
  StoreConnector connector = StoreConnector::for_worker(ranks_[0]->worker());
  EXPECT_EQ(connector.role(), ConnectorRole::kWorker);
  const Epoch floor = ranks_[0]->worker().status().floor;
  EXPECT_FALSE(connector.reset_cache(in(5s)));
  EXPECT_EQ(ranks_[0]->worker().status().floor, floor);
  EXPECT_EQ(ranks_[0]->requests(), 0u);
}

// 4
TEST_F(SeedTest, test_scheduler_reset_store_returns_client_reset_result) {
  use_mode(ResetMode::kRemoveAll);
  save(2);
  drain();
  ASSERT_EQ(stored(), 4u);
  const ResetAnswer answer = scheduler_->reset_store(in(5s));
  EXPECT_TRUE(answer.success);
  EXPECT_EQ(answer.removed, 4u);
  EXPECT_EQ(stored(), 0u);
}

// 5: what the seed's client raised is an answer here, and in time.
TEST_F(SeedTest, test_scheduler_reset_store_handles_rpc_exception) {
  ranks_[1]->stop();
  use_mode(ResetMode::kRemoveAll);
  const Time deadline = in(1s);
  const ResetAnswer answer = scheduler_->reset_store(deadline);
  EXPECT_FALSE(answer.success);
  EXPECT_THAT(answer.silent_ranks, ElementsAre(1));
  EXPECT_THAT(answer.error, ::testing::HasSubstr("rank 1"));
  EXPECT_GE(clock_.now(), deadline);

  use_mode(ResetMode::kFence);  // the fence needs nobody's answer
  const ResetAnswer fenced = scheduler_->reset_store(in(1s));
  EXPECT_TRUE(fenced.success);
  EXPECT_TRUE(fenced.degraded);
}

// 9
TEST_F(SeedTest, test_scheduler_reset_connector_cache_invokes_connector_reset) {
  use_mode(ResetMode::kRemoveAll);
  const auto reset_connector_cache = [&] {
    const std::optional<ResetAnswer> answer = connector().reset_cache(in(5s));
    return answer && answer->success;
  };
  EXPECT_TRUE(reset_connector_cache());
  EXPECT_THAT(store_.journal(), ElementsAre("remove_all"));
  store_.master_is_dead = true;
  EXPECT_FALSE(reset_connector_cache());
}

// 11: and the lookups, save progress and loads that the seed leaves.
TEST_F(SeedTest, test_reset_cache_scheduler_role_clears_local_state) {
  const ConnectorMetadata saved = save(1);
  drain();
  std::vector<WorkerReport> reports;
  for (auto& rank : ranks_) reports.push_back(rank->worker().get_finished());
  ConnectorOutput output;
  scheduler_->update_connector_output(reports, output);  // an event to be taken
  const std::vector<BlockHash> chain{test_hash(1), test_hash(2)};
  EXPECT_FALSE(scheduler_->get_num_new_matched_tokens("asking", 40, chain, 0));
  const std::vector<BlockId> blocks{11};
  ASSERT_TRUE(scheduler_->update_state_after_alloc("loading", blocks, chain, 0, 16));

  fence_.reset(true);
  ASSERT_TRUE(connector().reset_cache(in(5s))->success);
  EXPECT_EQ(client_->pending_lookups(), 0u);
  EXPECT_THAT(scheduler_->build_connector_meta({}).loads, IsEmpty());
  EXPECT_FALSE(scheduler_->has_outstanding_load("loading"));
  EXPECT_THAT(scheduler_->take_events(), IsEmpty());
  EXPECT_EQ(save(1).saves.size(), 1u);  // progress is forgotten: saved under the new epoch
}

// 12: the put that is under way ends first, on the wire of the seed.
TEST_F(SeedTest, test_lookup_key_server_reset_drains_send_queue_before_remove_all) {
  std::promise<void> open[kRanks];
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    store_.gates[rank] = open[rank].get_future().share();
  }
  save(1);
  while (store_.puts_at_gate < kRanks) std::this_thread::yield();
  RawZmqSocket peer(ZMQ_REQ, directory_.endpoint("rank0"));
  ASSERT_TRUE(peer.send({to_bytes(RESET_MSG)}));
  while (ranks_[0]->requests() == 0) std::this_thread::yield();
  EXPECT_THAT(store_.journal(), IsEmpty());
  open[0].set_value();
  const std::optional<Frames> reply = peer.receive();
  ASSERT_TRUE(reply);
  EXPECT_THAT(*reply, ElementsAre(to_bytes(RESP_OK)));
  EXPECT_THAT(store_.journal(), ElementsAre("put", "remove_all"));
  // Rank 1's put is none of rank 0's business on this wire; ours drains every rank.
  open[1].set_value();
  drain();
  EXPECT_THAT(store_.journal(), ElementsAre("put", "remove_all", "put"));
}

// 13: nothing was ever sent, so there is nothing to wait for.
TEST_F(SeedTest, test_lookup_key_server_reset_skips_drain_when_no_send_thread) {
  RawZmqSocket peer(ZMQ_REQ, directory_.endpoint("rank0"));
  ASSERT_TRUE(peer.send({to_bytes(RESET_MSG)}));
  const std::optional<Frames> reply = peer.receive();
  ASSERT_TRUE(reply);
  EXPECT_THAT(*reply, ElementsAre(to_bytes(RESP_OK)));
  EXPECT_THAT(store_.journal(), ElementsAre("remove_all"));
}

}  // namespace
}  // namespace newmoon::testing
