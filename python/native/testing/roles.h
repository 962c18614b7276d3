// Both roles over one fake store, with the messages encoded between them, as vLLM runs
// them. Messages and tasks move when the test says.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "admin/lookup_key_server.h"
#include "admin/testing/fake_transport.h"
#include "connector/testing/fake_store.h"
#include "connector/testing/jobs.h"
#include "connector/testing/manual_executor.h"
#include "python/native/scheduler_role.h"
#include "python/native/worker_role.h"

namespace newmoon::testing {

inline constexpr std::uint32_t kBlock = 16;  // tokens
inline constexpr std::size_t kBlocks = 32;
inline constexpr std::size_t kBytes = 8;  // a block, in each of two layers
inline constexpr std::size_t kRanks = 2;

struct Rank {
  Rank(StoreWorker::Options options, FakeStore& store, const Clock& clock, std::size_t slots)
      : memory({{kv.data(), kBytes, kBytes}, {kv.data() + kBlocks * kBytes, kBytes, kBytes}},
               kBlocks, slots, options.checksum),
        worker(std::move(options), store, memory, clock, send, receive),
        role(worker, memory, store, purge),
        server(worker, LookupKeyServer::Options{}, lookups, lookups) {}

  // As a forward pass with weights `value` would leave the block.
  void compute(BlockId block, std::uint8_t value) {
    for (const Fragment& fragment : memory.fragments(block)) {
      std::fill(fragment.begin(), fragment.end(), value);
    }
  }
  std::uint8_t content(BlockId block) { return memory.fragments(block)[1][kBytes - 1]; }
  void run_all() {
    send.run_all();
    receive.run_all();
    purge.run_all();
  }

  Bytes kv = Bytes(2 * kBlocks * kBytes);
  ManualExecutor send, receive, purge;
  InlineExecutor lookups;
  StagedMemory memory;
  StoreWorker worker;
  WorkerRole role;
  LookupKeyServer server;
};

class Roles : public ::testing::Test {
 protected:
  Roles() {
    transport_.on_send = [this](std::size_t rank, const Frames& frames) {
      if (silent_) return;
      ranks_[rank]->server.handle(
          frames, [this, rank](Frames reply) { transport_.deliver(rank, std::move(reply)); });
    };
    make_ranks(8);
    SchedulerRole::Options options;
    options.model = "tiny";
    options.layout = "test layout";
    options.scheduler.block_size = kBlock;
    scheduler_ = std::make_unique<SchedulerRole>(options, transport_, clock_, random_);
  }

  void make_ranks(std::size_t slots) {
    ranks_.clear();
    StoreWorker::Options options;
    options.layout = layout_id("test layout");
    for (std::uint16_t tp = 0; tp < kRanks; ++tp) options.all_shards.push_back(Shard{.tp = tp});
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      options.rank = rank;
      options.shard = options.all_shards[rank];
      ranks_.push_back(std::make_unique<Rank>(options, store_, clock_, slots));
    }
  }

  // The request's prompt is blocks 1, 2, ... of the one chain.
  std::optional<std::uint32_t> match(const RequestId& id, int blocks, std::uint32_t local = 0) {
    std::vector<BlockHash> more;
    for (int n = static_cast<int>(scheduler_->hash_count(id)) + 1; n <= blocks; ++n) {
      more.push_back(test_hash(n));
    }
    scheduler_->add_hashes(id, more);
    return scheduler_->match(id, static_cast<std::uint32_t>(blocks) * kBlock + 1, local);
  }
  void allocate(const RequestId& id, std::vector<BlockId> blocks, std::uint32_t local = 0,
                std::uint32_t external = 0) {
    EXPECT_TRUE(scheduler_->update_state_after_alloc(id, std::move(blocks), local, external));
  }
  // A step that computes what `blocks` lack, with weights `value`, on all ranks.
  StepMessage step(const RequestId& id, std::vector<BlockId> blocks, std::uint32_t computed,
                   std::uint8_t value) {
    const auto tokens = static_cast<std::uint32_t>(blocks.size()) * kBlock - computed;
    scheduler_->schedule(id, blocks, true, computed, tokens);
    const StepMessage message = build();
    for (std::size_t i = computed / kBlock; i < blocks.size(); ++i) {
      for (auto& rank : ranks_) rank->compute(blocks[i], value);
    }
    execute(message);
    return message;
  }
  StepMessage build() {
    return decode_step(encode_step(scheduler_->build_connector_meta())).value();
  }
  void execute(const StepMessage& message) {
    for (auto& rank : ranks_) {
      rank->role.start_load_kv(message);
      rank->role.wait_for_save(message);
    }
  }
  void run_all() {
    for (auto& rank : ranks_) rank->run_all();
  }
  SchedulerRole::Output collect() {
    std::vector<WorkerReport> reports;
    for (auto& rank : ranks_) {
      finished_ = rank->role.take_finished();
      reports.push_back(decode_report(encode_report(finished_.report)).value());
    }
    return scheduler_->update_connector_output(reports);
  }
  // Request `id` computes and saves the first `count` blocks, as blocks 1.. .
  void preload(const RequestId& id, int count, std::uint8_t value = 1) {
    ASSERT_EQ(match(id, count), 0u);
    std::vector<BlockId> blocks(static_cast<std::size_t>(count));
    std::iota(blocks.begin(), blocks.end(), 1);
    allocate(id, blocks);
    step(id, blocks, 0, value);
    run_all();
    collect();
    scheduler_->request_finished(id);
    ASSERT_EQ(store_.values.size(), static_cast<std::size_t>(count) * kRanks);
  }
  SchedulerRole::Reset reset() {
    return scheduler_->reset(false, clock_.now() + std::chrono::seconds(5));
  }

  FakeStore store_;
  FakeClock clock_;
  SeededRandom random_{1};
  FakeTransport transport_{clock_, kRanks};
  bool silent_ = false;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<SchedulerRole> scheduler_;
  WorkerRole::Finished finished_;  // of the last rank
};

}  // namespace newmoon::testing
