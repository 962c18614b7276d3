// Sends the examples of docs/formats.md, "Store over ipc", to a store, and compares its
// answers with those of the page.
#include <gtest/gtest.h>

#include "base/testing/formats_page.h"
#include "store/ipc_handler.h"
#include "store/memory_store.h"

namespace newmoon::ipc {
namespace {

using newmoon::testing::formats_page;
using newmoon::testing::frames_example;

class StoreFormatsPage : public ::testing::Test {
 protected:
  Frames answer_to(const std::string& example) {
    const Frames request = frames_example(example);
    const Result<Head> head = decode_head(request.at(0));
    EXPECT_TRUE(head) << head.error().message;
    ZmqFrames body;
    for (std::size_t i = 1; i < request.size(); ++i) body.emplace_back(ByteView(request[i]));
    Frames answer;
    for (const ZmqFrame& frame : handler_.answer(*head, body)) {
      answer.emplace_back(frame.bytes().begin(), frame.bytes().end());
    }
    return answer;
  }

  SystemClock clock_;
  InlineExecutor executor_;
  MemoryStore store_{{.budget_bytes = 1 << 20}, clock_, executor_};
  Handler handler_{store_};
};

TEST_F(StoreFormatsPage, TheExamplesAreARealConversation) {
  for (const std::string name : {"store-put", "store-lookup", "store-get", "store-hold",
                                 "store-list", "store-purge", "store-late-put"}) {
    EXPECT_EQ(answer_to(name), frames_example(name + "-answer")) << name;
  }
}

TEST_F(StoreFormatsPage, TheLimitsAreThoseOfTheCode) {
  const auto has = [](const std::string& what, std::size_t limit) {
    const std::string row = "| " + what + " | " + std::to_string(limit) + " |";
    return std::ranges::find(formats_page(), row) != formats_page().end();
  };
  EXPECT_TRUE(has("bytes of a frame, and of the payloads of a get", kPayloadBytesMax));
  EXPECT_TRUE(has("items of a put or get", kItemsMax));
  EXPECT_TRUE(has("block hashes of a lookup", kBlocksMax));
  EXPECT_TRUE(has("shards of a lookup", kShardsMax));
  EXPECT_TRUE(has("blocks x shards of a lookup", kHitsMax));
  EXPECT_TRUE(has("bytes of a description, holder or error message", kTextBytesMax));
}

}  // namespace
}  // namespace newmoon::ipc
