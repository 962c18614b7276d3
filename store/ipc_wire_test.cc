#include "store/ipc_wire.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/testing/blocks.h"

namespace newmoon::ipc {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests

Bytes bytes_of(const Head& head) {
  const auto frame = encode_head(head);
  return Bytes(frame.begin(), frame.end());
}

TEST(IpcHead, IsReadBackAsWritten) {
  const Head head{.op = Op::kGet,
                  .reply = true,
                  .flags = 7,
                  .request_id = 0x0102030405060708,
                  .count = 9,
                  .second_count = 10};
  EXPECT_EQ(*decode_head(encode_head(head)), head);
}

TEST(IpcHead, RefusesWhatIsNotOfThisVersion) {
  const Bytes good = bytes_of({});
  for (std::size_t size = 0; size < 40; ++size) {
    Bytes other = good;
    other.resize(size);
    EXPECT_EQ(decode_head(other).has_value(), size == Head::kBytes) << size;
  }
  for (const std::size_t at : {0, 1, 2, 3, 4}) {
    Bytes other = good;
    other[at] ^= 1;
    EXPECT_FALSE(decode_head(other)) << at;
  }
  for (const int op : {0, 12, 100, 0x80}) {
    Bytes other = good;
    other[5] = static_cast<std::uint8_t>(op);
    EXPECT_FALSE(decode_head(other)) << op;
  }
}

TEST(IpcStatus, EveryCodeComesBack) {
  for (const Code code : {Code::kMiss, Code::kBadRequest, Code::kUnavailable, Code::kDeadline,
                          Code::kBusy, Code::kCorrupt, Code::kFenced, Code::kInternal}) {
    const Status status = status_from_wire(to_wire(fail(code, "")), "why");
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, code);
    EXPECT_EQ(status.error().message, "why");
  }
  EXPECT_TRUE(status_from_wire(to_wire({}), ""));
  EXPECT_EQ(status_from_wire(99, "").error().code, Code::kInternal);
}

TEST(IpcGetEntry, IsReadBackAsWritten) {
  const Key key{scope_of(3), Shard{.tp = 1, .pp = 2, .dcp = 3, .group = 4}, block_of(5)};
  std::uint8_t bytes[GetEntry::kBytes];
  encode_get_entry({key, 368640}, bytes);
  const Result<GetEntry> entry = decode_get_entry(bytes);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->key, key);
  EXPECT_EQ(entry->payload_bytes, 368640u);
  bytes[32] = 33;
  EXPECT_FALSE(decode_get_entry(bytes));
}

TEST(IpcHit, IsReadBackAsWrittenAndNothingElseIs) {
  const std::vector<Shard> shards = {Shard{.tp = 0}, Shard{.tp = 1}};
  std::vector<BlockHash> blocks = blocks_of(0, 3);
  blocks.push_back(BlockHash(blocks[0].bytes().first(16)));
  Head head{.op = Op::kHitPrefix, .count = 4, .second_count = 2};
  const Bytes frame = encode_hit_request(scope_of(1), shards, blocks);
  const Result<HitRequest> request = decode_hit_request(head, frame);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->scope, scope_of(1));
  EXPECT_EQ(request->shards, shards);
  EXPECT_EQ(request->blocks, blocks);
  for (std::size_t size = 0; size < frame.size(); ++size) {
    EXPECT_FALSE(decode_hit_request(head, ByteView(frame).first(size)));
  }
  head.count = 0xffffffff;
  EXPECT_FALSE(decode_hit_request(head, frame));
  head = {.op = Op::kHitPrefix, .count = 4, .second_count = 0xffffffff};
  EXPECT_FALSE(decode_hit_request(head, frame));
}

TEST(IpcMessages, AreReadBackAsWrittenAndNothingElseIs) {
  const std::vector<Error> errors = {{Code::kMiss, "one"}, {Code::kBusy, std::string(5000, 'x')}};
  const Bytes frame = encode_messages(errors);
  EXPECT_EQ(*decode_messages(2, frame), (std::vector<std::string>{"one", std::string(1024, 'x')}));
  EXPECT_FALSE(decode_messages(1, frame));
  EXPECT_FALSE(decode_messages(3, frame));
  EXPECT_FALSE(decode_messages(2, ByteView(frame).first(frame.size() - 1)));
  EXPECT_TRUE(decode_messages(0, {}));
}

TEST(IpcScopes, AreReadBackAsWrittenAndNothingElseIs) {
  const std::vector<ScopeUsage> scopes = {
      {scope_of(1), "weights", 2, 300, {"engine-1", "engine-2"}}, {scope_of(2), "", 4, 5, {}}};
  Head head{.op = Op::kListScopes, .count = 2};
  const Bytes frame = encode_scopes(scopes);
  const Result<std::vector<ScopeUsage>> read = decode_scopes(head, frame);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].scope, scope_of(1));
  EXPECT_EQ((*read)[0].description, "weights");
  EXPECT_EQ((*read)[0].blocks, 2u);
  EXPECT_EQ((*read)[0].holders, scopes[0].holders);
  EXPECT_EQ((*read)[1].bytes, 5u);
  for (std::size_t size = 0; size < frame.size(); ++size) {
    EXPECT_FALSE(decode_scopes(head, ByteView(frame).first(size)));
  }
  head.count = 0xffffffff;
  EXPECT_FALSE(decode_scopes(head, frame));
}

TEST(IpcHolds, AreReadBackAsWrittenAndBoundedInSize) {
  const Bytes frame = encode_hold_request(scope_of(3), "engine-1", std::chrono::microseconds(1));
  const Result<HoldRequest> read = decode_hold_request(frame);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->scope, scope_of(3));
  EXPECT_EQ(read->holder, "engine-1");
  EXPECT_EQ(read->lease, std::chrono::milliseconds(1));  // never rounded to none
  EXPECT_FALSE(decode_hold_request(ByteView(frame).first(23)));
  Bytes longer = frame;
  longer.resize(24 + kTextBytesMax + 1);
  EXPECT_FALSE(decode_hold_request(longer));
  EXPECT_FALSE(decode_hold_request(encode_hold_request(scope_of(3), "x", std::chrono::days(2))));
  EXPECT_EQ(
      decode_hold_request(encode_hold_request(scope_of(3), "x", -std::chrono::days(2)))->lease,
      Duration::zero());
}

TEST(IpcFigures, AreReadBackAsWritten) {
  const StoreStats stats{1, 2, 3, 4, 5, 6, 7};
  const Result<StoreStats> read = decode_stats(encode_stats(stats));
  ASSERT_TRUE(read);
  EXPECT_EQ(encode_stats(*read), encode_stats(stats));
  EXPECT_EQ(read->refused_late_puts, 6u);
  EXPECT_EQ(read->unfinished_purges, 7u);
  EXPECT_FALSE(decode_stats(Bytes(55)));
  EXPECT_EQ(decode_count(encode_count(77)), 77u);
  EXPECT_FALSE(decode_count(Bytes(7)));
}

// Decoders that read a byte too many fail here under the address sanitizer.
TEST(IpcWire, NoiseIsRefusedOrRead) {
  SeededRandom random(1);
  for (int i = 0; i < 20'000; ++i) {
    Bytes noise(random.below(200));
    for (std::uint8_t& byte : noise) byte = static_cast<std::uint8_t>(random.next());
    const Head head{.count = static_cast<std::uint32_t>(random.below(5)),
                    .second_count = static_cast<std::uint32_t>(random.below(5))};
    (void)decode_head(noise);
    (void)decode_hit_request(head, noise);
    (void)decode_scope_request(noise);
    (void)decode_hold_request(noise);
    (void)decode_messages(head.count, noise);
    (void)decode_scopes(head, noise);
    if (noise.size() >= GetEntry::kBytes) (void)decode_get_entry(noise.data());
  }
}

}  // namespace
}  // namespace newmoon::ipc
