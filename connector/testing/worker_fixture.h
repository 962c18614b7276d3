// One rank over a store, memory and executors that a test drives.
#pragma once

#include <gtest/gtest.h>

#include "admin/testing/fake_transport.h"
#include "connector/store_worker.h"
#include "connector/testing/fake_store.h"
#include "connector/testing/jobs.h"
#include "connector/testing/manual_executor.h"
#include "connector/testing/vector_block_memory.h"

namespace newmoon::testing {

class WorkerFixture : public ::testing::Test {
 protected:
  static constexpr std::uint8_t kOld = 11;  // what weights leave in the blocks they compute
  static constexpr std::uint8_t kNew = 22;

  static StoreWorker::Options default_options() {
    StoreWorker::Options options;
    options.shard = Shard{.tp = 0};
    options.all_shards = {options.shard};
    options.layout = layout_id("test layout");
    options.foreign_scope = test_scope(99);
    options.send_jobs_max = 4;
    options.receive_jobs_max = 4;
    options.batch_blocks_max = 2;
    return options;
  }

  void make_worker(const StoreWorker::Options& options) {
    worker_ = std::make_unique<StoreWorker>(options, store_, memory_, clock_, send_, receive_);
  }
  WorkerFixture() { make_worker(default_options()); }

  SaveJob save_job(std::uint64_t id, Epoch epoch, const std::vector<BlockId>& blocks) {
    return {id, "request", epoch, test_scope(1), test_blocks(blocks)};
  }
  LoadJob load_job(std::uint64_t id, Epoch epoch, const std::vector<BlockId>& blocks) {
    return {id, "request", epoch, test_scope(1), test_blocks(blocks)};
  }
  FakeStore::Value* stored(BlockId block, std::uint8_t scope = 1, Shard shard = {}) {
    const auto value =
        store_.values.find(Key{test_scope(scope), shard, test_hash(block)}.to_string());
    return value == store_.values.end() ? nullptr : &value->second;
  }
  // Puts blocks filled with `content` into the store through the worker, then wipes them.
  void preload(const std::vector<BlockId>& blocks, std::uint8_t content = kOld, Epoch epoch = 1) {
    for (const BlockId block : blocks) memory_.fill(block, content);
    worker_->wait_for_save(step_with(save_job(1'000, epoch, blocks)));
    send_.run_all();
    ASSERT_EQ(worker_->get_finished().saves.at(0).outcome, SaveOutcome::kStored);
    for (const BlockId block : blocks) memory_.fill(block, 0);
  }
  WorkerReport load(const LoadJob& job) {
    worker_->start_load_kv(step_with(job));
    receive_.run_all();
    return worker_->get_finished();
  }

  FakeStore store_;
  FakeClock clock_;
  VectorBlockMemory memory_{16};
  ManualExecutor send_;
  ManualExecutor receive_;
  std::unique_ptr<StoreWorker> worker_;
};

}  // namespace newmoon::testing
