// Both roles over one fake store, with the messages encoded between them, as vLLM runs
// them. Messages and tasks move when the test says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "admin/lookup_key_server.h"
#include "admin/testing/fake_transport.h"
#include "connector/testing/fake_store.h"
#include "connector/testing/jobs.h"
#include "connector/testing/manual_executor.h"
#include "python/native/scheduler_role.h"
#include "python/native/worker_role.h"
#include "store/memory_store.h"

namespace newmoon {
namespace {

using newmoon::testing::FakeClock;
using newmoon::testing::FakeStore;
using newmoon::testing::FakeTransport;
using newmoon::testing::ManualExecutor;
using newmoon::testing::test_hash;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint32_t kBlock = 16;  // tokens
constexpr std::size_t kBlocks = 32;
constexpr std::size_t kBytes = 8;  // a block, in each of two layers
constexpr std::size_t kRanks = 2;

struct Rank {
  Rank(StoreWorker::Options options, FakeStore& store, std::size_t slots)
      : memory({{kv.data(), kBytes, kBytes}, {kv.data() + kBlocks * kBytes, kBytes, kBytes}},
               kBlocks, slots),
        worker(std::move(options), store, memory, send, receive),
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
      ranks_.push_back(std::make_unique<Rank>(options, store_, slots));
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

TEST_F(Roles, ABlockGoesOutAndComesBack) {
  preload("writer", 2, 7);
  EXPECT_EQ(match("reader", 2), 2 * kBlock);
  allocate("reader", {11, 12, 13}, 0, 2 * kBlock);
  EXPECT_TRUE(scheduler_->has_loads());
  execute(build());
  run_all();
  EXPECT_THAT(collect().cancelled, IsEmpty());
  EXPECT_THAT(finished_.loads, ElementsAre("reader"));
  EXPECT_THAT(finished_.failed_loads, IsEmpty());
  EXPECT_FALSE(scheduler_->has_loads());
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->content(11), 7);
    EXPECT_EQ(rank->content(12), 7);
  }
}

// Rule PIN, by staging: the block is written again before its save runs.
TEST_F(Roles, WhatIsSavedIsWhatTheStepLeft) {
  match("a", 1);
  allocate("a", {5});
  step("a", {5}, 0, 7);
  for (auto& rank : ranks_) rank->compute(5, 9);
  run_all();
  ASSERT_EQ(store_.values.size(), kRanks);
  EXPECT_THAT(store_.values.begin()->second.payload, ::testing::Each(7));
}

TEST_F(Roles, ASaveWithoutARoomIsDroppedAndReported) {
  make_ranks(1);
  match("a", 2);
  allocate("a", {5, 6});
  step("a", {5, 6}, 0, 7);
  run_all();
  collect();
  EXPECT_THAT(store_.values, IsEmpty());
  EXPECT_EQ(ranks_[0]->role.unstaged_saves(), 1u);
  // The slot is free for the next one.
  match("b", 1);
  allocate("b", {7});
  step("b", {7}, 0, 7);
  run_all();
  EXPECT_EQ(store_.values.size(), kRanks);
}

TEST_F(Roles, SlotsComeBackWithTheirSaves) {
  make_ranks(1);
  for (const BlockId block : {5, 6, 7}) {
    const RequestId id = "r" + std::to_string(block);
    match(id, 1);
    allocate(id, {block});
    step(id, {block}, 0, 7);
    run_all();
  }
  EXPECT_EQ(ranks_[0]->role.unstaged_saves(), 0u);
}

TEST_F(Roles, AResetLeavesNothingToFind) {
  preload("writer", 2);
  const SchedulerRole::Reset answer = reset();
  EXPECT_TRUE(answer.answer.success);
  EXPECT_FALSE(answer.answer.degraded);
  EXPECT_EQ(answer.scope, ScopeOutcome::kNew);
  EXPECT_EQ(match("reader", 2), 0u);
}

TEST_F(Roles, TheScopeThatAFenceLeftIsPurgedOnTheRanks) {
  preload("writer", 2);
  scheduler_->fence_only();
  EXPECT_EQ(store_.values.size(), 2 * kRanks);
  execute(build());
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// Rule BIRTH: a request that runs across a fence publishes nothing, until it drops its blocks.
TEST_F(Roles, ARequestFromBeforeAFenceIsNotSaved) {
  match("a", 3);
  allocate("a", {5});
  step("a", {5}, 0, 1);
  run_all();
  reset();
  store_.values.clear();
  step("a", {5, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());

  EXPECT_EQ(match("a", 3), 0u);  // preempted: it holds no blocks now
  allocate("a", {8, 9, 10});
  step("a", {8, 9, 10}, 0, 2);
  run_all();
  EXPECT_EQ(store_.values.size(), 3 * kRanks);
}

// A block begun before the fence and filled after it is of both.
TEST_F(Roles, ABlockFilledAcrossAFenceIsNotSaved) {
  match("a", 1);
  allocate("a", {5});
  scheduler_->schedule("a", {}, false, 0, kBlock / 2);
  execute(build());
  reset();
  scheduler_->schedule("a", {}, false, kBlock / 2, kBlock / 2);
  execute(build());
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// vLLM finds a block of before the fence in its own cache; what attends to it is stale too.
TEST_F(Roles, WhatStandsBehindAnOldLocalPrefixIsNotSaved) {
  match("a", 1);
  allocate("a", {5});
  step("a", {5}, 0, 1);
  run_all();
  scheduler_->request_finished("a");
  scheduler_->fence_only();
  store_.values.clear();
  EXPECT_EQ(match("b", 2, kBlock), 0u);
  allocate("b", {5, 6}, kBlock);
  step("b", {5, 6}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// As under vLLM's MultiConnector. The block may have been ours in this very epoch before.
TEST_F(Roles, WhatAnotherConnectorLoadedIsNotSaved) {
  preload("writer", 1);
  store_.values.clear();
  match("a", 3);
  allocate("a", {});
  step("a", {1, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// The same for a load that the request waits for, after which it is given its blocks again.
TEST_F(Roles, WhatAnotherConnectorLoadedInTheBackgroundIsNotSaved) {
  preload("writer", 1);
  store_.values.clear();
  match("a", 3);
  allocate("a", {1, 6, 7});
  allocate("a", {1, 6, 7}, kBlock);
  step("a", {1, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

TEST_F(Roles, WhatStandsBehindAnOwnLoadIsSaved) {
  preload("writer", 1);
  EXPECT_EQ(match("a", 3), kBlock);
  allocate("a", {5, 6, 7}, 0, kBlock);
  execute(build());
  run_all();
  collect();
  allocate("a", {5, 6, 7}, kBlock);
  step("a", {5, 6, 7}, kBlock, 2);
  run_all();
  EXPECT_EQ(store_.values.size(), 3 * kRanks);
}

// Rule ONE-LOAD: the ranks say the load was good, and it is of other weights all the same.
TEST_F(Roles, ALoadThatAFenceOvertakesIsCancelled) {
  preload("writer", 2);
  EXPECT_EQ(match("reader", 2), 2 * kBlock);
  allocate("reader", {11, 12, 13}, 0, 2 * kBlock);
  execute(build());
  run_all();  // loaded, not yet reported
  reset();
  EXPECT_THAT(collect().cancelled, ElementsAre("reader"));
  EXPECT_THAT(finished_.failed_loads, IsEmpty());
  EXPECT_FALSE(scheduler_->has_loads());
}

TEST_F(Roles, ALoadRefusedByTheFloorBringsNothing) {
  preload("writer", 2);
  match("reader", 2);
  allocate("reader", {11, 12, 13}, 0, 2 * kBlock);
  const StepMessage message = build();
  reset();
  execute(message);
  run_all();
  collect();
  EXPECT_THAT(finished_.failed_loads, ElementsAre("reader"));
  for (auto& rank : ranks_) EXPECT_EQ(rank->content(11), 0);
}

// What upstream's reset leaves queued, on all ranks but the first at least.
TEST_F(Roles, WhatIsStagedAtAResetIsStoredByNoRank) {
  make_ranks(2);
  match("a", 2);
  allocate("a", {5, 6});
  step("a", {5, 6}, 0, 7);
  reset();
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
  // Its slots are free for the next one.
  scheduler_->request_finished("a");
  match("b", 2);
  allocate("b", {7, 8});
  step("b", {7, 8}, 0, 7);
  run_all();
  EXPECT_EQ(store_.values.size(), 2 * kRanks);
}

TEST_F(Roles, AStepBuiltBeforeAResetAndRunAfterItStoresNothing) {
  match("a", 1);
  allocate("a", {5});
  scheduler_->schedule("a", {}, false, 0, kBlock);
  const StepMessage message = build();
  reset();
  execute(message);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
}

// Save progress and ledgers are of a request's life, not of its name.
TEST_F(Roles, AnIdUsedAgainAfterAResetIsSavedFromItsFirstBlock) {
  preload("a", 2);
  reset();
  store_.values.clear();
  preload("a", 2);
}

TEST_F(Roles, AnIdUsedAgainIsNotTakenForItsPredecessorWithALoadUnderWay) {
  preload("writer", 2);
  EXPECT_EQ(match("a", 2), 2 * kBlock);
  allocate("a", {11, 12, 13}, 0, 2 * kBlock);
  execute(build());
  scheduler_->request_finished("a");  // aborted
  EXPECT_EQ(match("a", 2), 0u);       // rule ONE-LOAD
  allocate("a", {21, 22, 23});
  run_all();
  EXPECT_THAT(collect().cancelled, IsEmpty()) << "the blocks of the new one are its own";
  EXPECT_FALSE(scheduler_->has_loads());
}

TEST_F(Roles, APartOfALoadIsKept) {
  preload("writer", 3);
  EXPECT_EQ(match("reader", 3), 3 * kBlock);
  std::erase_if(store_.values,
                [](const auto& value) { return value.first.ends_with(test_hash(2).hex()); });
  allocate("reader", {11, 12, 13, 14}, 0, 3 * kBlock);
  execute(build());
  run_all();
  collect();
  EXPECT_THAT(finished_.loads, ElementsAre("reader"));
  EXPECT_THAT(finished_.failed_loads, IsEmpty());
  EXPECT_THAT(finished_.failed_blocks, ElementsAre(12, 13));
}

TEST_F(Roles, NoScopeOpensWhileARankIsSilent) {
  silent_ = true;
  EXPECT_EQ(match("a", 1), 0u);
  EXPECT_TRUE(scheduler_->fence().sealed());
  const std::size_t asked = transport_.sent.size();
  EXPECT_EQ(match("a", 1), 0u);
  EXPECT_EQ(transport_.sent.size(), asked) << "it is not asked with every call";
  silent_ = false;
  for (int i = 0; i < 2; ++i) {  // a rank that was silent is not awaited the first time
    clock_.advance(std::chrono::seconds(2));
    match("a", 1);
  }
  EXPECT_FALSE(scheduler_->fence().sealed());
}

// Rule BIND, end to end: nobody announced the write.
TEST_F(Roles, AnUnannouncedWeightWriteFences) {
  preload("writer", 1);
  const Epoch before = scheduler_->fence().epoch();
  for (auto& rank : ranks_) rank->worker.note_weight_write(0);
  store_.values.clear();
  match("a", 1);
  allocate("a", {5});
  step("a", {5}, 0, 2);
  run_all();
  EXPECT_THAT(store_.values, IsEmpty());
  EXPECT_TRUE(collect().must_fence);
  EXPECT_GT(scheduler_->fence().epoch(), before);

  match("b", 1);
  EXPECT_THAT(scheduler_->fence().bound_writes(), ElementsAre(1, 1));
  allocate("b", {6});
  step("b", {6}, 0, 2);
  run_all();
  EXPECT_FALSE(collect().must_fence);
  EXPECT_EQ(store_.values.size(), kRanks);
}

// --- identities ---

Sha256Digest digest_of(std::uint8_t weights) {
  Sha256Digest digest{};
  digest.fill(weights);
  return digest;
}

class NamedRoles : public Roles {
 protected:
  NamedRoles() { start(IdentityMode::kDigest); }

  void start(IdentityMode identity, const std::string& name_space = "run-7") {
    SchedulerRole::Options options;
    options.name_space = name_space;
    options.model = "tiny";
    options.layout = "test layout";
    options.scheduler.block_size = kBlock;
    options.identity = identity;
    scheduler_ = std::make_unique<SchedulerRole>(options, transport_, clock_, random_);
  }
  // Every rank holds the same weights, and says so.
  void identify(std::uint8_t weights, std::vector<std::uint64_t> writes = {0, 0}) {
    const std::vector<Sha256Digest> digests(kRanks, digest_of(weights));
    scheduler_->identify(digests, std::move(writes));
  }
  void update(std::uint8_t weights) {
    scheduler_->seal();
    scheduler_->unseal();
    identify(weights);
  }
  bool is_unique() const { return scheduler_->fence().scope()->is_unique(); }
};

TEST_F(NamedRoles, GoingBackToEarlierWeightsFindsTheirBlocks) {
  identify(1);
  preload("of 1", 2);
  update(2);
  EXPECT_EQ(match("of 2", 2), 0u);
  update(1);
  EXPECT_EQ(match("of 1 again", 2), 2 * kBlock);
}

TEST_F(NamedRoles, AnotherEngineFindsTheBlocksOfTheSameWeights) {
  identify(1);
  preload("first engine", 2);
  start(IdentityMode::kDigest);
  identify(2);
  EXPECT_EQ(match("other weights", 2), 0u);
  start(IdentityMode::kDigest);
  identify(1);
  EXPECT_EQ(match("same weights", 2), 2 * kBlock);
}

TEST_F(NamedRoles, AnOrderOfRanksIsPartOfTheIdentity) {
  const std::vector<Sha256Digest> one = {digest_of(1), digest_of(2)};
  const std::vector<Sha256Digest> other = {digest_of(2), digest_of(1)};
  scheduler_->identify(one, {0, 0});
  match("a", 1);
  const ScopeId scope = *scheduler_->fence().scope_id();
  update(3);
  scheduler_->identify(other, {0, 0});
  match("b", 1);
  EXPECT_NE(*scheduler_->fence().scope_id(), scope);
}

// Rule BIND: a write between the digest and the first use.
TEST_F(NamedRoles, ADigestFromBeforeAWriteNamesNothing) {
  identify(1);
  for (auto& rank : ranks_) rank->worker.note_weight_write(0);
  match("a", 1);
  EXPECT_TRUE(is_unique());
}

TEST_F(NamedRoles, RanksThatWroteUnequallyOftenHaveNoNamedWeights) {
  ranks_[1]->worker.note_weight_write(0);
  identify(1, {0, 1});
  match("a", 1);
  EXPECT_TRUE(is_unique());
}

TEST_F(NamedRoles, AnUnannouncedWriteIsSeenBeforeAnythingIsMatched) {
  identify(1);
  preload("writer", 2);
  EXPECT_FALSE(scheduler_->weights_were_written());
  ranks_[1]->worker.note_weight_write(0);
  build();  // asked once a step
  EXPECT_TRUE(scheduler_->weights_were_written());
  EXPECT_TRUE(scheduler_->adopt_is_due());
  EXPECT_EQ(match("reader", 2), 0u);
  EXPECT_TRUE(is_unique());
  build();
  EXPECT_FALSE(scheduler_->weights_were_written()) << "it is the new scope that is bound now";
}

TEST_F(NamedRoles, SilentRanksHoldUpNoMatch) {
  identify(1);
  match("a", 1);
  build();
  silent_ = true;
  EXPECT_FALSE(scheduler_->weights_were_written());
}

TEST_F(NamedRoles, ATrustedLabelNamesTheWeightsItWasSetBehind) {
  start(IdentityMode::kTrustedLabel);
  match("start", 1);
  EXPECT_TRUE(is_unique()) << "vLLM's first label is nobody's word";
  scheduler_->set_weight_version("step-1");
  preload("of step-1", 2);
  EXPECT_FALSE(is_unique());
  const ScopeId first = *scheduler_->fence().scope_id();

  scheduler_->seal();
  scheduler_->unseal();
  match("unlabelled", 1);
  EXPECT_TRUE(is_unique()) << "set before the weights were written";
  scheduler_->set_weight_version("step-1");
  match("same label", 1);
  EXPECT_TRUE(is_unique()) << "unchanged since the weights were written";

  scheduler_->set_weight_version("step-2");
  match("of step-2", 1);
  EXPECT_FALSE(is_unique());
  EXPECT_NE(*scheduler_->fence().scope_id(), first);
  scheduler_->seal();
  scheduler_->unseal();
  scheduler_->set_weight_version("step-1");
  EXPECT_EQ(match("back at step-1", 2), 2 * kBlock);
}

TEST_F(NamedRoles, ALabelCountsOnlyInANamespaceAndIfItSaysSomething) {
  start(IdentityMode::kTrustedLabel, "");
  scheduler_->set_weight_version("step-1");
  match("a", 1);
  EXPECT_TRUE(is_unique());
  for (const char* label : {"", "default"}) {
    start(IdentityMode::kTrustedLabel);
    scheduler_->set_weight_version("step-1");
    scheduler_->seal();
    scheduler_->unseal();
    scheduler_->set_weight_version(label);
    match("b", 1);
    EXPECT_TRUE(is_unique()) << label;
  }
}

TEST_F(NamedRoles, LabelsAndDigestsNameNothingUnlessAskedFor) {
  start(IdentityMode::kUnique);
  identify(1);
  scheduler_->set_weight_version("step-1");
  match("a", 1);
  EXPECT_TRUE(is_unique());
}

// --- leases ---

TEST_F(Roles, TheStoreIsToldWhichScopesAreUsed) {
  InlineExecutor frees;
  MemoryStore store({.budget_bytes = 1 << 20}, clock_, frees);
  ScopeHold hold({.holder = "engine-1"}, store, clock_, ranks_[0]->purge);
  WorkerRole role(ranks_[0]->worker, ranks_[0]->memory, store_, ranks_[0]->purge, &hold);
  const auto held = [&] {
    ranks_[0]->purge.run_all();
    std::vector<ScopeId> scopes;
    const std::vector<ScopeUsage> usages = store.list_scopes().value();
    for (const ScopeUsage& usage : usages) scopes.push_back(usage.scope);
    return scopes;
  };
  match("a", 1);
  const StepMessage message = build();
  EXPECT_EQ(build().open_scope, std::nullopt) << "told once";
  role.start_load_kv(message);
  EXPECT_THAT(held(), ElementsAre(*scheduler_->fence().scope_id()));
  scheduler_->seal();
  role.start_load_kv(build());
  EXPECT_THAT(held(), IsEmpty());
}

}  // namespace
}  // namespace newmoon
