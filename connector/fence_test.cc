#include "connector/fence.h"

#include <gmock/gmock.h>

#include <limits>
#include <new>

#include "base/testing/out_of_memory.h"

namespace newmoon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const DigestIdentity kBase{{1}};
const DigestIdentity kTuned{{2}};

Fence::Identity identity() { return {"run-7", "model", "layout", Incarnation{{9}}}; }

TEST(FenceTest, StartsSealed) {
  const Fence fence(identity());
  EXPECT_TRUE(fence.sealed());
  EXPECT_FALSE(fence.scope_id());
  EXPECT_EQ(fence.epoch(), 1u);
}

TEST(FenceTest, EveryFenceMovesTheEpochByOne) {
  Fence fence(identity());
  fence.adopt(kBase);
  EXPECT_EQ(fence.epoch(), 2u);
  fence.reset(true);  // keeps the scope and moves on nevertheless
  EXPECT_EQ(fence.epoch(), 3u);
  fence.reset(false);
  EXPECT_EQ(fence.epoch(), 4u);
  fence.seal();
  EXPECT_EQ(fence.epoch(), 5u);
  fence.reset(false);
  EXPECT_EQ(fence.epoch(), 6u);
  fence.adopt_unique();
  EXPECT_EQ(fence.epoch(), 7u);
}

// Long texts, so that there is much to allocate.
TEST(FenceTest, WithoutMemoryItHasMovedOrNot) {
  for (const std::size_t limit : {16, 64, 256, 1024, 2048, 4096, 8192}) {
    Fence fence({"run-7", std::string(3000, 'm'), std::string(3000, 'l'), Incarnation{{9}}});
    fence.adopt(kBase);
    const Epoch epoch = fence.epoch();
    const Scope scope = *fence.scope();
    bool has_moved = true;
    try {
      const testing::NoMemoryFrom none(limit);
      fence.adopt(kTuned);
    } catch (const std::bad_alloc&) {
      has_moved = false;
    }
    EXPECT_EQ(fence.epoch(), has_moved ? epoch + 1 : epoch) << limit;
    EXPECT_EQ(*fence.scope() != scope, has_moved) << limit;
    EXPECT_EQ(*fence.scope_id(), fence.scope()->id()) << limit;
  }
}

TEST(FenceTest, SealLeavesTheScope) {
  Fence fence(identity());
  fence.adopt(kBase);
  const std::optional<Scope> left = fence.seal();
  ASSERT_TRUE(left);
  EXPECT_EQ(left->weights, WeightsIdentity(kBase));
  EXPECT_TRUE(fence.sealed());
  EXPECT_FALSE(fence.seal());  // twice: nothing more to leave
}

TEST(FenceTest, AdoptOfVerifiedWeightsFindsTheirScopeAgain) {
  Fence fence(identity());
  fence.adopt(kBase);
  const ScopeId first = *fence.scope_id();
  fence.seal();
  fence.adopt(kTuned);
  EXPECT_NE(*fence.scope_id(), first);
  fence.seal();
  fence.adopt(kBase);
  EXPECT_EQ(*fence.scope_id(), first);
}

TEST(FenceTest, ReadoptedScopeIsNotLeft) {
  Fence fence(identity());
  fence.adopt(kBase);
  EXPECT_FALSE(fence.adopt(kBase));
}

TEST(FenceTest, UniqueScopesNeverMeetAgain) {
  Fence fence(identity());
  Fence other({"run-7", "model", "layout", Incarnation{{8}}});
  fence.adopt_unique();
  other.adopt_unique();
  const ScopeId first = *fence.scope_id();
  EXPECT_NE(*other.scope_id(), first);
  const std::optional<Scope> left = fence.adopt_unique();
  ASSERT_TRUE(left);
  EXPECT_TRUE(left->is_unique());
  EXPECT_NE(*fence.scope_id(), first);
}

TEST(FenceTest, ScopeHoldsNamespaceModelAndLayout) {
  Fence fence(identity());
  Fence other({"run-8", "model", "layout", Incarnation{{9}}});
  fence.adopt(kBase);
  other.adopt(kBase);
  EXPECT_NE(*fence.scope_id(), *other.scope_id());
}

// W8: verl resets once more after loading.
TEST(FenceTest, ResetWithNothingScheduledKeepsAVerifiedScope) {
  Fence fence(identity());
  fence.adopt(kBase);
  const ScopeId scope = *fence.scope_id();
  for (int i = 0; i < 3; ++i) {
    const Fence::ResetResult reset = fence.reset(false);
    EXPECT_EQ(reset.outcome, ScopeOutcome::kKept);
    EXPECT_FALSE(reset.left);
    EXPECT_EQ(*fence.scope_id(), scope);
  }
}

TEST(FenceTest, ResetAfterSchedulingGivesAUniqueScopeUntilTheNextAdopt) {
  Fence fence(identity());
  fence.adopt(kBase);
  fence.note_scheduled();
  const Fence::ResetResult reset = fence.reset(false);
  EXPECT_EQ(reset.outcome, ScopeOutcome::kNew);
  ASSERT_TRUE(reset.left);
  EXPECT_FALSE(reset.left->is_unique());  // so it is not purged
  ASSERT_TRUE(fence.scope());
  EXPECT_TRUE(fence.scope()->is_unique());
  fence.adopt(kBase);
  EXPECT_EQ(fence.reset(false).outcome, ScopeOutcome::kKept);  // nothing since this adopt
}

TEST(FenceTest, KeepVerifiedKeepsAVerifiedScopeInUse) {
  Fence fence(identity());
  fence.adopt(LabelIdentity{"step-42"});
  const ScopeId scope = *fence.scope_id();
  fence.note_scheduled();
  EXPECT_EQ(fence.reset(true).outcome, ScopeOutcome::kKept);
  EXPECT_EQ(*fence.scope_id(), scope);
  // Kept is not adopted: it has been in use, so the next plain reset is no repeat.
  EXPECT_EQ(fence.reset(false).outcome, ScopeOutcome::kNew);
}

TEST(FenceTest, ResetOfAUniqueScopeIsAlwaysNew) {
  Fence fence(identity());
  fence.adopt_unique();
  const ScopeId scope = *fence.scope_id();
  const Fence::ResetResult reset = fence.reset(true);
  EXPECT_EQ(reset.outcome, ScopeOutcome::kNew);
  ASSERT_TRUE(reset.left);
  EXPECT_TRUE(reset.left->is_unique());
  EXPECT_NE(*fence.scope_id(), scope);
}

TEST(FenceTest, ResetWhileSealedStaysSealed) {
  Fence fence(identity());
  fence.adopt(kBase);
  fence.seal();
  EXPECT_EQ(fence.reset(true).outcome, ScopeOutcome::kSealed);
  EXPECT_EQ(fence.reset(false).outcome, ScopeOutcome::kSealed);
  EXPECT_TRUE(fence.sealed());
}

// Rule BIND: the counts stand as long as the weights they were taken with.
TEST(FenceTest, BoundWritesLastUntilTheNextSealOrAdopt) {
  Fence fence(identity());
  fence.adopt(kBase, {2, 2});
  EXPECT_THAT(fence.bound_writes(), ElementsAre(2, 2));
  fence.reset(false);
  EXPECT_THAT(fence.bound_writes(), ElementsAre(2, 2));
  fence.note_scheduled();
  fence.reset(false);  // a unique scope, of the same weights
  EXPECT_THAT(fence.bound_writes(), ElementsAre(2, 2));
  fence.seal();
  EXPECT_THAT(fence.bound_writes(), IsEmpty());
  fence.adopt_unique({4, 4});
  EXPECT_THAT(fence.bound_writes(), ElementsAre(4, 4));
}

TEST(FenceTest, OutcomeNames) {
  EXPECT_EQ(to_string(ScopeOutcome::kKept), "kept");
  EXPECT_EQ(to_string(ScopeOutcome::kNew), "new");
  EXPECT_EQ(to_string(ScopeOutcome::kSealed), "sealed");
}

using Admission = EpochFloor::Admission;

TEST(EpochFloorTest, IsStickyAndRefusesWhatIsBelow) {
  EpochFloor floor;
  floor.raise(5);
  floor.raise(3);
  EXPECT_EQ(floor.floor(), 5u);
  EXPECT_EQ(floor.admit(4), Admission::kBelowFloor);
  EXPECT_EQ(floor.admit(5), Admission::kAdmitted);
}

TEST(EpochFloorTest, AJobOfALaterEpochRaisesIt) {
  EpochFloor floor;
  floor.raise(5);
  EXPECT_EQ(floor.admit(6), Admission::kAdmitted);
  EXPECT_EQ(floor.admit(5), Admission::kBelowFloor);
}

TEST(EpochFloorTest, AWeightWriteUnbindsTheEpochsHeardOf) {
  EpochFloor floor;
  floor.raise(5);
  ASSERT_EQ(floor.admit(5), Admission::kAdmitted);
  floor.note_weight_write(0);
  EXPECT_EQ(floor.weight_writes(), 1u);
  EXPECT_EQ(floor.floor(), 6u);
  EXPECT_EQ(floor.admit(5), Admission::kUnbound);
  EXPECT_EQ(floor.admit(4), Admission::kBelowFloor);
  EXPECT_EQ(floor.admit(6), Admission::kAdmitted);
  // The fence that follows makes the old epoch a plain late one.
  EXPECT_EQ(floor.admit(5), Admission::kBelowFloor);
}

// verl writes a parameter at a time: many writes within one seal must not run past the
// epoch that the adopt will have.
TEST(EpochFloorTest, ManyWritesMoveTheFloorOnce) {
  EpochFloor floor;
  floor.raise(5);
  for (int i = 0; i < 100; ++i) floor.note_weight_write(0);
  EXPECT_EQ(floor.weight_writes(), 100u);
  EXPECT_EQ(floor.admit(6), Admission::kAdmitted);
}

// The write overtook a step of epoch 5 on its way to the rank, and both fence messages
// were lost: only the writer's epoch tells.
TEST(EpochFloorTest, AWriteThatKnowsItsSealRefusesAnEpochNotYetHeardOf) {
  EpochFloor floor;
  floor.raise(4);
  floor.note_weight_write(6);
  EXPECT_EQ(floor.admit(5), Admission::kUnbound);
  EXPECT_EQ(floor.admit(6), Admission::kAdmitted);
}

// Somebody wrote weights after they were identified and before the epoch was heard of.
TEST(EpochFloorTest, AnEpochBoundToAnotherCountIsRefused) {
  EpochFloor floor;
  floor.raise(5);
  floor.note_weight_write(0);
  ASSERT_EQ(floor.admit(6), Admission::kAdmitted);  // without a count nobody can tell
  EXPECT_FALSE(floor.bind(6, 0));
  EXPECT_EQ(floor.admit(6), Admission::kUnbound);
  EXPECT_TRUE(floor.bind(7, 1));
  EXPECT_EQ(floor.admit(7), Admission::kAdmitted);
}

TEST(EpochFloorTest, RefuseHeardIsAWriteWithoutCount) {
  EpochFloor floor;
  floor.raise(5);
  floor.refuse_heard();
  EXPECT_EQ(floor.weight_writes(), 0u);
  EXPECT_EQ(floor.admit(5), Admission::kUnbound);
}

TEST(EpochFloorTest, ABogusEpochDoesNotWrapAround) {
  EpochFloor floor;
  floor.raise(std::numeric_limits<Epoch>::max());
  floor.note_weight_write(0);
  EXPECT_EQ(floor.floor(), std::numeric_limits<Epoch>::max());
  EXPECT_EQ(floor.admit(5), Admission::kBelowFloor);
}

}  // namespace
}  // namespace newmoon
