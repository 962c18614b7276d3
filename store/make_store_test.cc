#include "store/make_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>

#include "base/testing/temp_dir.h"
#include "store/ipc_server.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST_F(MakeStore, ABudgetIsNamedAsWhoeverSetItKnowsIt) {
  const StoreOptions none{.budget_bytes = 0, .budget_name = "budget_bytes"};
  EXPECT_THAT(make_store("memory", none, clock_, executor_).error().message,
              AllOf(HasSubstr("budget_bytes"), Not(HasSubstr("--store-bytes"))));
  const StoreOptions small{.budget_bytes = 1 << 20, .budget_name = "budget_bytes"};
  const auto store = make_store("memory", small, clock_, executor_);
  const Status refused = put_one(**store, key_of(1, 1), 2 << 20);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("raise its budget (budget_bytes)"));
}

TEST_F(MakeStore, AUrlIsCheckedWithoutOpeningAnything) {
  const TempDir directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "no socket";
  const std::string folder = directory.path() + "/missing";
  for (const std::string& url : {std::string("memory"), directory.endpoint("nobody"),
                                 std::string("mooncake://127.0.0.1:1")}) {
    EXPECT_TRUE(check_store_url(url)) << url;
  }
  const std::pair<std::string, std::string> wrong[] = {
      {"", "memory, ipc://PATH or mooncake://HOST:PORT"},
      {"redis://x", "redis://x"},
      {"ipc://", "names no socket"},
      {"ipc://" + folder + "/store", folder},
      {"ipc://" + file + "/store", file},
      {"ipc://" + file, "no socket"},
      {"mooncake://127.0.0.1", "HOST:PORT"},
      {"mooncake://127.0.0.1:1?lease=1", "lease"}};
  for (const auto& [url, said] : wrong) {
    const Status checked = check_store_url(url);
    ASSERT_FALSE(checked) << url;
    EXPECT_EQ(checked.error().code, Code::kBadRequest) << url;
    EXPECT_THAT(checked.error().message, HasSubstr(said));
  }
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
