#include "store/scope_holds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using newmoon::testing::scope_of;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ScopeHolds, ALeaseEndsWithItsTimeAndOthersGoOn) {
  ScopeHolds holds(10);
  ASSERT_TRUE(holds.hold(scope_of(1), "a", seconds(10), seconds(0)));
  ASSERT_TRUE(holds.hold(scope_of(1), "b", seconds(20), seconds(0)));
  EXPECT_THAT(holds.holders(seconds(9)), ElementsAre(Pair(scope_of(1), ElementsAre("a", "b"))));
  EXPECT_THAT(holds.holders(seconds(10)), ElementsAre(Pair(scope_of(1), ElementsAre("b"))));
  EXPECT_THAT(holds.holders(seconds(20)), IsEmpty());
}

TEST(ScopeHolds, ALaterCallReplacesTheLease) {
  ScopeHolds holds(10);
  ASSERT_TRUE(holds.hold(scope_of(1), "a", seconds(10), seconds(0)));
  ASSERT_TRUE(holds.hold(scope_of(1), "a", seconds(10), seconds(5)));
  EXPECT_THAT(holds.holders(seconds(14)), ElementsAre(Pair(scope_of(1), ElementsAre("a"))));
  ASSERT_TRUE(holds.hold(scope_of(1), "a", seconds(0), seconds(14)));
  EXPECT_THAT(holds.holders(seconds(14)), IsEmpty());
}

TEST(ScopeHolds, TheirNumberIsBoundedAndEndedOnesMakeRoom) {
  ScopeHolds holds(2);
  ASSERT_TRUE(holds.hold(scope_of(1), "a", seconds(10), seconds(0)));
  ASSERT_TRUE(holds.hold(scope_of(2), "a", seconds(20), seconds(0)));
  EXPECT_EQ(holds.hold(scope_of(3), "a", seconds(10), seconds(0)).error().code, Code::kBusy);
  EXPECT_TRUE(holds.hold(scope_of(2), "a", seconds(20), seconds(1)));  // a renewal needs none
  EXPECT_TRUE(holds.hold(scope_of(3), "a", seconds(10), seconds(10)));
}

TEST(ScopeHolds, ALeaseOfAnyLengthAndANameOfAnyLengthAreTaken) {
  ScopeHolds holds(2);
  ASSERT_TRUE(holds.hold(scope_of(1), std::string(5000, 'x'), Duration::max(), seconds(7)));
  EXPECT_THAT(holds.holders(seconds(1'000'000)),
              ElementsAre(Pair(scope_of(1), ElementsAre(std::string(kHolderBytesMax, 'x')))));
}

}  // namespace
}  // namespace newmoon
