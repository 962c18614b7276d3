#include "store/make_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/testing/temp_dir.h"
#include "store/ipc_server.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using ::testing::HasSubstr;

class MakeStore : public ::testing::Test {
 protected:
  Result<std::unique_ptr<KvStore>> make(const std::string& url, std::uint64_t budget_bytes) {
    return make_store(url, {.budget_bytes = budget_bytes}, clock_, executor_);
  }
  SystemClock clock_;
  InlineExecutor executor_;
};

TEST_F(MakeStore, MemoryHasTheBudgetGiven) {
  const auto store = make("memory", 1 << 20);
  ASSERT_TRUE(store);
  EXPECT_EQ((*store)->stats()->budget_bytes, 1u << 20);
}

TEST_F(MakeStore, IpcReachesTheServerAtThePath) {
  const auto behind = make("memory", 1 << 20);
  const TempDir directory;
  const auto server = StoreServer::start(directory.endpoint("store"), **behind);
  ASSERT_TRUE(server);
  const auto store = make(directory.endpoint("store"), 0);
  ASSERT_TRUE(store);
  ASSERT_TRUE(put_one(**store, key_of(1, 1)));
  EXPECT_TRUE(is_there(**behind, key_of(1, 1)));
}

TEST_F(MakeStore, ABudgetOfNothingIsRefusedByName) {
  const auto store = make("memory", 0);
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::kBadRequest);
  EXPECT_THAT(store.error().message, HasSubstr("budget of 0 bytes"));
}

TEST_F(MakeStore, AnUnknownUrlIsRefusedWithTheKnownOnes) {
  for (const char* url : {"", "none", "redis://x", "memory:", "ipc:/x", "ipc://"}) {
    const auto store = make(url, 1);
    ASSERT_FALSE(store) << url;
    EXPECT_EQ(store.error().code, Code::kBadRequest) << url;
  }
  EXPECT_THAT(make("redis://x", 1).error().message,
              HasSubstr("memory, ipc://PATH or mooncake://HOST:PORT"));
}

}  // namespace
}  // namespace newmoon
