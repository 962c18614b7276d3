// Decodes and encodes the examples of docs/formats.md, section "Admin channel".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "admin/protocol.h"
#include "base/testing/formats_page.h"
#include "hash/scope_text.h"

namespace newmoon {
namespace {

using newmoon::testing::formats_page;
using newmoon::testing::frames_example;
using ::testing::Contains;

BlockHash hash_of(std::string_view hex) { return BlockHash(*from_hex(hex)); }

LookupRequest lookup_example() {
  LookupRequest lookup;
  std::ranges::copy(*from_hex("3626c87d812542e43122cfdccb097ad1"),
                    lookup.scope.emplace().bytes.begin());
  lookup.epoch = 7;
  lookup.num_tokens = 33;
  lookup.block_hashes = {
      hash_of("202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea"),
      hash_of("4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf")};
  return lookup;
}

void expect_request(const std::string& name, std::uint64_t id, const Request& request) {
  EXPECT_EQ(encode_request(id, request), frames_example(name)) << name;
  const Result<Request> decoded = decode_request(frames_example(name), ProtocolLimits());
  ASSERT_TRUE(decoded) << name;
  EXPECT_EQ(decoded->request_id, id);
  EXPECT_EQ(encode_request(id, *decoded), frames_example(name)) << name;
}

TEST(AdminFormatsTest, ForeignForms) {
  const LookupRequest lookup = lookup_example();
  EXPECT_EQ(encode_foreign_lookup(ForeignDialect::kVllm, lookup),
            frames_example("admin-lookup-vllm"));
  EXPECT_EQ(encode_foreign_lookup(ForeignDialect::kSeed, lookup),
            frames_example("admin-lookup-seed"));
  for (const std::string name : {"admin-lookup-vllm", "admin-lookup-seed"}) {
    const Result<Request> request = decode_request(frames_example(name), ProtocolLimits());
    ASSERT_TRUE(request) << name;
    EXPECT_TRUE(request->foreign);
    EXPECT_EQ(std::get<LookupRequest>(request->body).block_hashes, lookup.block_hashes);
    EXPECT_EQ(encode_reply(*request, 32U), frames_example("admin-lookup-foreign-reply"));
  }
  EXPECT_EQ(encode_foreign_reset(), frames_example("admin-reset-foreign"));
}

TEST(AdminFormatsTest, OwnRequests) {
  expect_request("admin-lookup", 1, Request{.body = lookup_example()});
  expect_request("admin-fence", 2, Request{.body = FenceRequest{.epoch = 8}});
  expect_request(
      "admin-reset", 3,
      Request{.body = ResetRequest{.epoch = 9, .mode = ResetMode::kRemoveAll, .remove = true}});
  expect_request("admin-ping", 4, Request{.body = PingRequest()});
  expect_request("admin-drain", 5, Request{.body = DrainRequest()});
  expect_request("admin-weights-written", 10, Request{.body = WeightsWrittenRequest()});
}

TEST(AdminFormatsTest, OwnReplies) {
  const Request lookup{.body = LookupRequest(), .request_id = 1};
  EXPECT_EQ(encode_reply(lookup, 32U), frames_example("admin-lookup-reply"));
  const FenceAck fenced{.floor = 8, .dropped_loads = 1, .dropped_saves = 300, .weight_writes = 5};
  const Request fence{.body = FenceRequest(), .request_id = 2};
  EXPECT_EQ(encode_reply(fence, fenced), frames_example("admin-fence-reply"));
  const ResetAck ack{.fence = {.floor = 9, .weight_writes = 5}, .removed = 1'000'000};
  const Request reset{.body = ResetRequest(), .request_id = 3};
  EXPECT_EQ(encode_reply(reset, ack), frames_example("admin-reset-reply"));
  EXPECT_EQ(encode_error(1, {Code::kFenced, "epoch 7 is gone"}), frames_example("admin-error"));
}

TEST(AdminFormatsTest, CommandsThatLookIntoTheStore) {
  const ScopeId scope = *lookup_example().scope;
  expect_request("admin-stats", 6, Request{.body = StatsRequest()});
  ScopesRequest page;
  page.after.emplace().bytes.back() = 1;
  expect_request("admin-scopes", 7, Request{.body = page});
  expect_request("admin-purge", 8,
                 Request{.body = PurgeRequest{{.scope = {}, .name_space = "run-7"}}});
  expect_request("admin-purge-scope", 9,
                 Request{.body = PurgeRequest{{.scope = scope, .name_space = {}}}});

  RankStats stats{.epoch = 8, .floor = 8, .weight_writes = 5};
  stats.transfers.saved_blocks = 300;
  stats.purges = {.accepted = 1, .done = 1};
  stats.server.requests = 12;
  stats.store = {.blocks = 300, .bytes = 42000, .budget_bytes = std::uint64_t{1} << 32};
  const Request ask_stats{.body = StatsRequest(), .request_id = 6};
  EXPECT_EQ(encode_reply(ask_stats, stats), frames_example("admin-stats-reply"));

  const Scope named{"run-7", "Qwen/Qwen3-0.6B", "block=16;dtype=bf16;tp=2",
                    LabelIdentity{"step-42"}};
  ASSERT_EQ(named.id(), scope);
  const ScopesPage scopes{.scopes = {{scope, describe(named), 300, 42000, {"engine-1"}}}};
  const Request ask_scopes{.body = page, .request_id = 7};
  EXPECT_EQ(encode_reply(ask_scopes, scopes), frames_example("admin-scopes-reply"));
  EXPECT_THAT(formats_page(), Contains(describe(named)));

  const Request purge{.body = PurgeRequest(), .request_id = 8};
  EXPECT_EQ(encode_reply(purge, PurgeAck{.scopes = 1, .blocks = 300, .bytes = 42000}),
            frames_example("admin-purge-reply"));
}

TEST(AdminFormatsTest, Limits) {
  const ProtocolLimits limits;
  const auto row = [](const std::string& name, std::size_t value) {
    return "| " + name + " of a message | " + std::to_string(value) + " |";
  };
  EXPECT_THAT(formats_page(), Contains(row("bytes", limits.message_bytes_max)));
  EXPECT_THAT(formats_page(), Contains(row("frames", limits.frames_max)));
  EXPECT_THAT(formats_page(), Contains(row("block hashes", limits.hashes_max)));
}

}  // namespace
}  // namespace newmoon
