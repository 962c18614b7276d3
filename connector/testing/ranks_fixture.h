// A StoreScheduler with real client, servers and workers of several ranks over one fake
// store. Messages and tasks move when the test says.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "admin/lookup_key_server.h"
#include "admin/testing/fake_transport.h"
#include "connector/store_scheduler.h"
#include "connector/store_worker.h"
#include "connector/testing/fake_store.h"
#include "connector/testing/jobs.h"
#include "connector/testing/manual_executor.h"
#include "connector/testing/vector_block_memory.h"

namespace newmoon::testing {

class FakePins final : public BlockPins {
 public:
  std::map<BlockId, int> pins;
  std::map<BlockId, Epoch> births;

  void pin(BlockId block) override { ++pins[block]; }
  void unpin(BlockId block) override {
    EXPECT_GT(pins[block], 0) << "unpinned more often than pinned: block " << block;
    --pins[block];
  }
  Epoch birth(BlockId block) const override {
    const auto birth = births.find(block);
    return birth == births.end() ? 0 : birth->second;
  }
  int pinned() const {
    int count = 0;
    for (const auto& [block, times] : pins) count += times;
    return count;
  }
};

struct TestRank {
  TestRank(const StoreWorker::Options& options, FakeStore& store, const Clock& clock)
      : worker(options, store, memory, clock, send, receive),
        server(worker, LookupKeyServer::Options{}, lookups, lookups) {}

  VectorBlockMemory memory{32};
  ManualExecutor send;
  ManualExecutor receive;
  InlineExecutor lookups;
  StoreWorker worker;
  LookupKeyServer server;

  void run_all() {
    send.run_all();
    receive.run_all();
  }
};

class RanksFixture : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlock = 16;  // tokens
  static constexpr std::size_t kRanks = 2;

  RanksFixture() {
    transport_.on_send = [this](std::size_t rank, const Frames& frames) {
      if (lost_.contains(rank)) return;
      ranks_[rank]->server.handle(
          frames, [this, rank](Frames reply) { transport_.deliver(rank, std::move(reply)); });
      if (run_on_message_) ranks_[rank]->run_all();
    };
    StoreWorker::Options options;
    options.layout = layout_id("test layout");
    for (std::uint16_t tp = 0; tp < kRanks; ++tp) options.all_shards.push_back(Shard{.tp = tp});
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      options.rank = rank;
      options.shard = options.all_shards[rank];
      ranks_.push_back(std::make_unique<TestRank>(options, store_, clock_));
    }
    fence_.adopt(DigestIdentity{{1}});
    make_scheduler({});
  }

  void make_scheduler(const StoreScheduler::Options& options) {
    scheduler_ = std::make_unique<StoreScheduler>(options, fence_, client_, pins_);
  }
  StoreWorker& worker(std::size_t rank) { return ranks_[rank]->worker; }

  static std::vector<BlockHash> hashes(int count) {
    std::vector<BlockHash> hashes;
    for (int n = 1; n <= count; ++n) hashes.push_back(test_hash(n));
    return hashes;
  }
  // Blocks computed by a step of the current epoch, in every rank's memory.
  void compute(const std::vector<BlockId>& blocks, std::uint8_t content = 1) {
    for (const BlockId block : blocks) {
      pins_.births[block] = fence_.epoch();
      for (auto& rank : ranks_) rank->memory.fill(block, content);
    }
  }
  // The metadata of a step after which `tokens` of a request are computed.
  ConnectorMetadata step(const RequestId& id, std::uint32_t tokens,
                         const std::vector<BlockId>& blocks) {
    const std::vector<BlockHash> chain = hashes(static_cast<int>(tokens / kBlock));
    const RequestProgress progress{id, tokens, chain, blocks};
    return scheduler_->build_connector_meta({&progress, 1});
  }
  void execute(std::size_t rank, const ConnectorMetadata& metadata) {
    worker(rank).start_load_kv(metadata);
    worker(rank).wait_for_save(metadata);
  }
  ConnectorOutput update(const std::vector<WorkerReport>& reports) {
    ConnectorOutput output;
    scheduler_->update_connector_output(reports, output);
    return output;
  }
  ConnectorOutput collect() {
    std::vector<WorkerReport> reports;
    for (auto& rank : ranks_) reports.push_back(rank->worker.get_finished());
    return update(reports);
  }
  // One step on all ranks, with its transfers.
  ConnectorOutput run(const ConnectorMetadata& metadata) {
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      execute(rank, metadata);
      ranks_[rank]->run_all();
    }
    return collect();
  }
  // Blocks 1..count of the chain are in the store, saved by a request "writer".
  void preload(int count) {
    std::vector<BlockId> blocks;
    for (BlockId block = 1; block <= count; ++block) blocks.push_back(block);
    compute(blocks);
    run(step("writer", static_cast<std::uint32_t>(count) * kBlock, blocks));
    scheduler_->request_finished("writer");
    scheduler_->take_events();
    ASSERT_EQ(pins_.pinned(), 0);
    ASSERT_EQ(store_.values.size(), static_cast<std::size_t>(count) * kRanks);
  }
  // Polls until there is an answer: the tokens matched.
  std::uint32_t match(const RequestId& id, std::uint32_t tokens, std::uint32_t computed = 0) {
    const auto chain = hashes(static_cast<int>(tokens / kBlock));
    for (int i = 0; i < 3; ++i) {
      const auto found = scheduler_->get_num_new_matched_tokens(id, tokens, chain, computed);
      if (found) return found->num_tokens;
    }
    ADD_FAILURE() << "no answer to the lookup of " << id;
    return 0;
  }
  // Starts a load of the first `count` blocks into blocks 11.. .
  std::uint64_t start_load(const RequestId& id, int count) {
    const auto blocks = load_blocks(count);
    const auto load_id = scheduler_->update_state_after_alloc(
        id, blocks, hashes(count), 0, static_cast<std::uint32_t>(count) * kBlock);
    EXPECT_TRUE(load_id);
    return load_id.value_or(0);
  }
  static std::vector<BlockId> load_blocks(int count) {
    std::vector<BlockId> blocks;
    for (int n = 1; n <= count; ++n) blocks.push_back(10 + n);
    return blocks;
  }
  std::size_t messages() const { return transport_.sent.size(); }
  Time soon() { return clock_.now() + std::chrono::seconds(5); }

  FakeStore store_;
  FakeClock clock_;
  FakeTransport transport_{clock_, kRanks};
  std::set<std::size_t> lost_;  // ranks that no message reaches
  bool run_on_message_ = false;
  std::vector<std::unique_ptr<TestRank>> ranks_;
  LookupKeyClient client_{transport_, clock_, {}};
  Fence fence_{{"run", "model", "layout", Incarnation{{7}}}};
  FakePins pins_;
  std::unique_ptr<StoreScheduler> scheduler_;
};

}  // namespace newmoon::testing
