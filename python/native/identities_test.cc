// What names the weights in the scheduler role's scopes, and who is told that they are used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "python/native/testing/roles.h"
#include "store/memory_store.h"

namespace newmoon {
namespace {

using newmoon::testing::kBlock;
using newmoon::testing::kRanks;
using newmoon::testing::Roles;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

// Nothing ran since the adopt, so the scope is kept; but is it still that of the weights?
TEST_F(NamedRoles, AResetThatKeepsAScopeHasItsWeightsIdentifiedAgain) {
  identify(1);
  preload("of 1", 2);
  update(1);
  EXPECT_EQ(match("adopts", 2), 2 * kBlock);
  EXPECT_EQ(reset().scope, ScopeOutcome::kKept);
  EXPECT_TRUE(scheduler_->adopt_is_due());
  identify(2);
  EXPECT_EQ(match("of 2", 2), 0u);
  EXPECT_EQ(scheduler_->fence_only(), ScopeOutcome::kKept);
  identify(1);
  EXPECT_EQ(match("of 1 still", 2), 2 * kBlock);
}

// --- weights that no rank saw written, and of which only a reset tells ---

class UnseenWrites : public NamedRoles {
 protected:
  // Two blocks are stored under the name of weights 1, and a reset has left it.
  void run_and_reset() {
    identify(1);
    preload("who knows of which", 2);
    EXPECT_EQ(reset().scope, ScopeOutcome::kNew);
    EXPECT_TRUE(scheduler_->adopt_is_due());
  }
  void take_step() {
    execute(build());
    run_all();
  }
};

TEST_F(UnseenWrites, WhatRanBeforeTheResetIsFoundByNobodyOnceItsWeightsAreThere) {
  run_and_reset();
  identify(2);
  EXPECT_EQ(match("of 2", 2), 0u);
  EXPECT_FALSE(is_unique());
  take_step();
  EXPECT_THAT(store_.values, IsEmpty());
  collect();
  update(1);
  EXPECT_EQ(match("back at 1", 2), 0u);
  EXPECT_FALSE(is_unique());
  preload("of 1 indeed", 2);
  update(2);
  update(1);
  EXPECT_EQ(match("the name may be used again", 2), 2 * kBlock);
}

TEST_F(UnseenWrites, APutThatRunsDuringTheResetIsRemovedToo) {
  identify(1);
  match("writer", 2);
  allocate("writer", {1, 2});
  step("writer", {1, 2}, 0, 1);
  bool is_reset = false;
  store_.before_put = [&] {
    if (std::exchange(is_reset, true)) return;
    reset();
    identify(2);
    match("of 2", 2);
    execute(build());
    for (auto& rank : ranks_) rank->purge.run_all();
  };
  run_all();
  run_all();
  EXPECT_TRUE(is_reset);
  EXPECT_THAT(store_.values, IsEmpty());
}

TEST_F(UnseenWrites, TheSameWeightsStartColdAndKeepWhatIsStoredOfThem) {
  run_and_reset();
  identify(1);
  EXPECT_EQ(match("cold", 2), 0u);
  EXPECT_TRUE(is_unique());
  take_step();
  EXPECT_EQ(reset().scope, ScopeOutcome::kNew);
  EXPECT_FALSE(scheduler_->adopt_is_due()) << "no name was left, so none is in doubt";
  update(1);
  EXPECT_EQ(match("by name", 2), 2 * kBlock);
}

// Two ranks: the name stays out of use until the last has emptied it.
TEST_F(UnseenWrites, TheNameIsNotUsedBeforeEveryRankHasEmptiedIt) {
  run_and_reset();
  identify(2);
  match("of 2", 2);
  store_.purge_error = Error{Code::kUnavailable, "away"};
  for (int tries = 0; tries < 3; ++tries) {
    take_step();
    collect();
  }
  EXPECT_EQ(store_.values.size(), 2 * kRanks);
  update(1);
  EXPECT_EQ(match("too early", 2), 0u);
  EXPECT_TRUE(is_unique());
  store_.purge_error.reset();
  execute(build());
  ranks_[0]->run_all();
  collect();
  update(1);
  EXPECT_EQ(match("too early for rank 1", 2), 0u);
  EXPECT_TRUE(is_unique());
  take_step();
  collect();
  EXPECT_THAT(store_.values, IsEmpty());
  update(1);
  match("in time", 2);
  EXPECT_FALSE(is_unique());
}

// The digest of before it, whose scope no rank's silence let open.
TEST_F(UnseenWrites, AResetWhileSealedForgetsTheDigestToo) {
  identify(1);
  silent_ = true;
  match("nobody answers", 2);
  silent_ = false;
  clock_.advance(std::chrono::seconds(10));
  EXPECT_EQ(reset().scope, ScopeOutcome::kSealed);
  match("nobody said since", 2);
  EXPECT_TRUE(is_unique());
}

TEST_F(UnseenWrites, AResetLeavesNoScopeToPurgeThatNobodyUsed) {
  run_and_reset();
  EXPECT_THAT(build().left_scopes, IsEmpty());
}

// Who would know of which weights the requests before were?
TEST_F(UnseenWrites, AnAnnouncedWriteBehindTheResetEndsTheDoubt) {
  run_and_reset();
  update(2);
  match("of 2", 2);
  take_step();
  update(1);
  EXPECT_EQ(match("back at 1", 2), 2 * kBlock);
}

TEST_F(UnseenWrites, AWriteThatARankCountedBehindTheResetEndsTheDoubt) {
  run_and_reset();
  for (auto& rank : ranks_) rank->worker.note_weight_write(0);
  identify(2, {1, 1});
  match("of 2", 2);
  EXPECT_FALSE(is_unique());
  take_step();
  EXPECT_EQ(store_.values.size(), 2 * kRanks);
}

TEST_F(UnseenWrites, WeightsThatCannotBeReadStartColdAndRemoveNothing) {
  run_and_reset();
  match("of whatever", 2);
  EXPECT_TRUE(is_unique());
  take_step();
  EXPECT_EQ(store_.values.size(), 2 * kRanks);
}

// --- and what ends a name ---

// A step in the middle of blocks, of which schedule() is told nothing.
TEST_F(NamedRoles, ARequestThatRunsOnUnderAScopeEndsItWithAReset) {
  identify(1);
  match("adopts", 2);
  scheduler_->build_connector_meta(false);
  EXPECT_EQ(reset().scope, ScopeOutcome::kKept);
  identify(1);
  match("adopts again", 2);
  scheduler_->build_connector_meta(true);
  EXPECT_EQ(reset().scope, ScopeOutcome::kNew);
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

// Named again by their digest, the weights find their blocks, but not once nothing names them.
TEST_F(NamedRoles, AnOperatorsFenceIsSeenBeforeAnythingIsMatched) {
  identify(1);
  preload("writer", 2);
  EXPECT_FALSE(scheduler_->weights_were_written());
  for (auto& rank : ranks_) rank->worker.weights_written();
  build();  // asked once a step
  EXPECT_TRUE(scheduler_->weights_were_written());
  EXPECT_EQ(match("nobody says which", 2), 0u);
  EXPECT_TRUE(is_unique());
  for (auto& rank : ranks_) rank->worker.weights_written();
  build();
  EXPECT_TRUE(scheduler_->weights_were_written());
  identify(1, {2, 2});
  EXPECT_EQ(match("the digest says", 2), 2 * kBlock);
}

TEST_F(NamedRoles, AnOperatorsFenceOfOneRankLeavesWeightsThatNothingNames) {
  identify(1);
  preload("writer", 2);
  ranks_[1]->worker.weights_written();
  build();
  EXPECT_TRUE(scheduler_->weights_were_written());
  identify(1, {0, 1});
  EXPECT_EQ(match("reader", 2), 0u);
  EXPECT_TRUE(is_unique());
}

// As it is behind an update that failed: the engine's own cache is in use all the same.
TEST_F(NamedRoles, AWriteIsSeenWhileTheFenceIsSealed) {
  match("adopts", 1);
  scheduler_->seal();
  build();
  EXPECT_FALSE(scheduler_->weights_were_written()) << "nothing is cached yet";
  build();
  EXPECT_FALSE(scheduler_->weights_were_written());
  ranks_[0]->worker.weights_written();
  build();
  EXPECT_TRUE(scheduler_->weights_were_written());
  EXPECT_TRUE(scheduler_->fence().sealed());
  EXPECT_FALSE(scheduler_->adopt_is_due());
}

TEST_F(NamedRoles, AWriteWhileRanksWereSilentIsSeenWhileTheFenceIsSealed) {
  match("adopts", 1);
  scheduler_->seal();
  build();
  silent_ = true;
  EXPECT_FALSE(scheduler_->weights_were_written());
  build();
  ranks_[0]->worker.weights_written();
  silent_ = false;
  clock_.advance(std::chrono::seconds(10));
  build();
  EXPECT_TRUE(scheduler_->weights_were_written());
}

// A new label opens a new scope, be it in a step without new requests.
TEST_F(NamedRoles, ALabelBehindAWriteDoesNotHideIt) {
  for (const bool steps : {false, true}) {
    start(IdentityMode::kTrustedLabel);
    scheduler_->set_weight_version("step-1");
    match("a", 1);
    build();
    EXPECT_FALSE(scheduler_->weights_were_written());
    build();
    for (auto& rank : ranks_) rank->worker.weights_written();
    scheduler_->set_weight_version("step-2");
    if (steps) build();
    EXPECT_TRUE(scheduler_->weights_were_written()) << steps;
    match("b", 1);
    EXPECT_FALSE(is_unique()) << "step-2 was told behind the write";
    build();
    EXPECT_FALSE(scheduler_->weights_were_written()) << steps;
  }
}

TEST_F(NamedRoles, ALabelFromBeforeAWriteNamesNothing) {
  start(IdentityMode::kTrustedLabel);
  scheduler_->set_weight_version("step-1");
  for (auto& rank : ranks_) rank->worker.weights_written();
  match("of who knows what", 1);
  EXPECT_TRUE(is_unique());
  silent_ = true;
  scheduler_->set_weight_version("step-2");
  silent_ = false;
  match("told while nobody knew the count", 1);
  EXPECT_TRUE(is_unique());
}

// A label is told between steps, and the ranks are asked for it.
TEST_F(NamedRoles, AWriteBetweenALabelAndTheNextStepIsSeen) {
  start(IdentityMode::kTrustedLabel);
  match("a", 1);
  build();
  EXPECT_FALSE(scheduler_->weights_were_written());
  scheduler_->set_weight_version("step-1");
  for (auto& rank : ranks_) rank->worker.weights_written();
  EXPECT_TRUE(scheduler_->weights_were_written());
}

// A request of that step might use what the engine's own cache has of weights of before.
TEST_F(NamedRoles, WhatSilentRanksWroteIsNotTakenForNothing) {
  identify(1);
  match("a", 1);
  build();
  EXPECT_FALSE(scheduler_->weights_were_written());
  EXPECT_TRUE(scheduler_->writes_are_known());
  build();
  for (auto& rank : ranks_) rank->worker.weights_written();
  silent_ = true;
  for (const char* id : {"of the step", "of the same step"}) {
    EXPECT_FALSE(scheduler_->weights_were_written()) << id;
    EXPECT_FALSE(scheduler_->writes_are_known()) << id;
  }
  build();
  const Time before = clock_.now();
  EXPECT_FALSE(scheduler_->weights_were_written());
  EXPECT_FALSE(scheduler_->writes_are_known());
  EXPECT_EQ(clock_.now(), before) << "it holds up one step, and not the next one";

  silent_ = false;
  clock_.advance(std::chrono::seconds(10));
  build();
  EXPECT_TRUE(scheduler_->weights_were_written());
  EXPECT_TRUE(scheduler_->writes_are_known());
}

// Nothing is forgotten for it.
TEST_F(NamedRoles, ARankThatWasOnlyBusyIsBelievedAgain) {
  match("a", 1);
  build();
  EXPECT_FALSE(scheduler_->weights_were_written());
  const Epoch before = scheduler_->fence().epoch();
  build();
  silent_ = true;
  EXPECT_FALSE(scheduler_->weights_were_written());
  EXPECT_FALSE(scheduler_->writes_are_known());
  silent_ = false;
  clock_.advance(std::chrono::seconds(10));
  build();
  EXPECT_FALSE(scheduler_->weights_were_written());
  EXPECT_TRUE(scheduler_->writes_are_known());
  EXPECT_EQ(scheduler_->fence().epoch(), before);
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
