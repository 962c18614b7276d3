#include "admin/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "admin/msgpack_map.h"

namespace newmoon {
namespace {

using ::testing::HasSubstr;

Bytes hex(std::string_view text) { return *from_hex(text); }

Frames hex_frames(std::initializer_list<std::string_view> texts) {
  Frames frames;
  for (const std::string_view text : texts) frames.push_back(hex(text));
  return frames;
}

std::vector<BlockHash> make_hashes(std::size_t count, std::size_t size) {
  std::vector<BlockHash> hashes;
  for (std::size_t i = 0; i < count; ++i) {
    Bytes bytes(size);
    for (std::size_t b = 0; b < size; ++b) bytes[b] = static_cast<std::uint8_t>(i * 31 + b);
    hashes.emplace_back(bytes);
  }
  return hashes;
}

LookupRequest make_lookup(std::size_t count, std::size_t size = 32) {
  LookupRequest lookup;
  lookup.scope = ScopeId{{1, 2, 3}};
  lookup.epoch = 0x1122334455667788;
  lookup.num_tokens = 33;
  lookup.block_hashes = make_hashes(count, size);
  return lookup;
}

Result<Request> decode(const Frames& frames) { return decode_request(frames, ProtocolLimits()); }

std::string error_of(const Frames& frames, const ProtocolLimits& limits = {}) {
  const Result<Request> request = decode_request(frames, limits);
  if (request) return "accepted";
  EXPECT_EQ(request.error().code, Code::kBadRequest);
  return request.error().message;
}

// The seed's test of the same name, on our constants.
TEST(ProtocolTest, test_protocol_tags_are_distinct_and_non_empty) {
  const std::set<std::string_view> tags = {
      LOOKUP_MSG, RESET_MSG, SCOPED_LOOKUP_MSG, FENCE_MSG,  SCOPED_RESET_MSG,
      PING_MSG,   DRAIN_MSG, STATS_MSG,         SCOPES_MSG, PURGE_MSG};
  EXPECT_EQ(tags.size(), 10U);
  EXPECT_FALSE(tags.contains(""));
  EXPECT_NE(RESP_OK, RESP_ERR);
  EXPECT_EQ(RESP_OK.size(), 1U);
  EXPECT_EQ(RESP_ERR.size(), 1U);
}

TEST(ProtocolTest, VllmLookupIsUpstreamsBytes) {
  const LookupRequest lookup = make_lookup(2);
  Bytes blob;
  for (const BlockHash& hash : lookup.block_hashes) append(blob, hash.bytes());
  const Frames frames = {hex("6c6f6f6b7570"), hex("00000021"), hex("0020"), blob};
  EXPECT_EQ(encode_foreign_lookup(ForeignDialect::kVllm, lookup), frames);

  Result<Request> request = decode(frames);
  ASSERT_TRUE(request);
  EXPECT_TRUE(request->foreign);
  const auto& seen = std::get<LookupRequest>(request->body);
  EXPECT_EQ(seen.scope, std::nullopt);
  EXPECT_EQ(seen.num_tokens, 33U);
  EXPECT_EQ(seen.block_hashes, lookup.block_hashes);
  EXPECT_EQ(encode_reply(*request, 32U), hex_frames({"00000020"}));
}

TEST(ProtocolTest, VllmLookupMayCarryAFifthFrameThatIsIgnored) {
  Frames frames = encode_foreign_lookup(ForeignDialect::kVllm, make_lookup(2, 16));
  frames.push_back(to_bytes("\x01"));
  const Result<Request> request = decode(frames);
  ASSERT_TRUE(request);
  EXPECT_EQ(std::get<LookupRequest>(request->body).block_hashes, make_hashes(2, 16));
}

TEST(ProtocolTest, SeedLookupIsTheSeedsBytes) {
  LookupRequest lookup;
  lookup.num_tokens = 128;
  lookup.block_hashes = {BlockHash(hex("00ff")), BlockHash(hex("abcd"))};
  const Frames frames = hex_frames({"6c6f6f6b7570", "00000080", "92a430306666a461626364"});
  EXPECT_EQ(encode_foreign_lookup(ForeignDialect::kSeed, lookup), frames);

  const Result<Request> request = decode(frames);
  ASSERT_TRUE(request);
  EXPECT_TRUE(request->foreign);
  EXPECT_EQ(std::get<LookupRequest>(request->body).num_tokens, 128U);
  EXPECT_EQ(std::get<LookupRequest>(request->body).block_hashes, lookup.block_hashes);
}

TEST(ProtocolTest, SeedLookupMayComeInSeveralFrames) {
  // Frame 2 has 2 bytes, but only three or more than five frames: the seed's.
  const Result<Request> three = decode(hex_frames({"6c6f6f6b7570", "00000080", "9190"}));
  EXPECT_FALSE(three);
  const Result<Request> split =
      decode(hex_frames({"6c6f6f6b7570", "00000080", "91a430306666", "91a461626364"}));
  ASSERT_TRUE(split);
  EXPECT_EQ(std::get<LookupRequest>(split->body).block_hashes,
            (std::vector{BlockHash(hex("00ff")), BlockHash(hex("abcd"))}));
  const Result<Request> empty = decode(hex_frames({"6c6f6f6b7570", "00000080", "90"}));
  ASSERT_TRUE(empty);
  EXPECT_TRUE(std::get<LookupRequest>(empty->body).block_hashes.empty());
}

TEST(ProtocolTest, ForeignResetMeansRemoveAll) {
  EXPECT_EQ(encode_foreign_reset(), hex_frames({"7265736574"}));
  const Result<Request> request = decode(encode_foreign_reset());
  ASSERT_TRUE(request);
  EXPECT_TRUE(request->foreign);
  const auto& reset = std::get<ResetRequest>(request->body);
  EXPECT_EQ(reset.mode, ResetMode::kRemoveAll);
  EXPECT_TRUE(reset.remove);
  EXPECT_EQ(reset.epoch, 0U);
  EXPECT_EQ(encode_reply(*request, ResetAck()), hex_frames({"01"}));
  EXPECT_EQ(encode_error(std::nullopt, {Code::kInternal, "x"}), hex_frames({"00"}));
}

TEST(ProtocolTest, OwnRequestsComeBackAsTheyWere) {
  const LookupRequest lookup = make_lookup(5);
  Frames frames = encode_request(7, Request{.body = lookup});
  Result<Request> request = decode(frames);
  ASSERT_TRUE(request);
  EXPECT_FALSE(request->foreign);
  EXPECT_EQ(request->request_id, 7U);
  EXPECT_EQ(peek_request_id(frames), 7U);
  const auto& seen = std::get<LookupRequest>(request->body);
  EXPECT_EQ(seen.scope, lookup.scope);
  EXPECT_EQ(seen.epoch, lookup.epoch);
  EXPECT_EQ(seen.num_tokens, lookup.num_tokens);
  EXPECT_EQ(seen.block_hashes, lookup.block_hashes);

  request = decode(encode_request(8, Request{.body = FenceRequest{.epoch = 9}}));
  ASSERT_TRUE(request);
  EXPECT_EQ(std::get<FenceRequest>(request->body).epoch, 9U);

  const ResetRequest reset{.epoch = 10, .mode = ResetMode::kRemoveAll, .remove = true};
  request = decode(encode_request(UINT64_MAX, Request{.body = reset}));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->request_id, UINT64_MAX);
  EXPECT_EQ(std::get<ResetRequest>(request->body).epoch, 10U);
  EXPECT_EQ(std::get<ResetRequest>(request->body).mode, ResetMode::kRemoveAll);
  EXPECT_TRUE(std::get<ResetRequest>(request->body).remove);

  request = decode(encode_request(1, Request{.body = PingRequest()}));
  EXPECT_TRUE(request && std::holds_alternative<PingRequest>(request->body));
  request = decode(encode_request(1, Request{.body = DrainRequest()}));
  EXPECT_TRUE(request && std::holds_alternative<DrainRequest>(request->body));
}

TEST(ProtocolTest, HashesOfAnotherSizeThanTheFirstEndTheQuestion) {
  LookupRequest lookup = make_lookup(3, 32);
  lookup.block_hashes[2] = BlockHash(Bytes(16));
  const Result<Request> request = decode(encode_request(1, Request{.body = lookup}));
  ASSERT_TRUE(request);
  EXPECT_EQ(std::get<LookupRequest>(request->body).block_hashes, make_hashes(2, 32));
}

TEST(ProtocolTest, UnknownKeysOfANewerPeerAreIgnored) {
  const Bytes map = MsgpackMapWriter(3)
                        .put_uint64("epoch", 5)
                        .put_text("colour", "red")
                        .put_boolean("dry", true)
                        .take();
  Frames frames = encode_request(1, Request{.body = FenceRequest()});
  frames[2] = map;
  const Result<Request> request = decode(frames);
  ASSERT_TRUE(request);
  EXPECT_EQ(std::get<FenceRequest>(request->body).epoch, 5U);
}

TEST(ProtocolTest, RepliesComeBackAsTheyWere) {
  const Request lookup{.body = LookupRequest(), .request_id = 3};
  Result<Reply> reply = decode_reply(encode_reply(lookup, 4096U), lookup.body.index());
  ASSERT_TRUE(reply && reply->body);
  EXPECT_EQ(reply->request_id, 3U);
  EXPECT_EQ(std::get<std::uint32_t>(*reply->body), 4096U);

  const FenceAck fence{.floor = 1, .dropped_loads = 2, .dropped_saves = 3, .weight_writes = 4};
  const Request reset{.body = ResetRequest(), .request_id = 4};
  const ResetAck ack{.fence = fence, .removed = 5, .remaining = 6};
  reply = decode_reply(encode_reply(reset, ack), reset.body.index());
  ASSERT_TRUE(reply && reply->body);
  const auto& seen = std::get<ResetAck>(*reply->body);
  EXPECT_EQ(seen.fence.floor, 1U);
  EXPECT_EQ(seen.fence.dropped_loads, 2U);
  EXPECT_EQ(seen.fence.dropped_saves, 3U);
  EXPECT_EQ(seen.fence.weight_writes, 4U);
  EXPECT_EQ(seen.removed, 5U);
  EXPECT_EQ(seen.remaining, 6U);

  const Request ping{.body = PingRequest(), .request_id = 5};
  reply = decode_reply(encode_reply(ping, fence), ping.body.index());
  ASSERT_TRUE(reply && reply->body);
  EXPECT_EQ(std::get<FenceAck>(*reply->body).dropped_saves, 3U);

  const Request written{.body = WeightsWrittenRequest(), .request_id = 6};
  reply = decode_reply(encode_reply(written, fence), written.body.index());
  ASSERT_TRUE(reply && reply->body);
  EXPECT_EQ(reply->request_id, 6U);
  EXPECT_EQ(std::get<FenceAck>(*reply->body).weight_writes, 4U);
}

TEST(ProtocolTest, ErrorsCarryCodeAndMessage) {
  const Frames frames = encode_error(6, {Code::kBusy, "send queue is full"});
  EXPECT_EQ(peek_reply_id(frames), 6U);
  const Result<Reply> reply = decode_reply(frames, 0);
  ASSERT_TRUE(reply);
  ASSERT_FALSE(reply->body);
  EXPECT_EQ(reply->body.error().code, Code::kBusy);
  EXPECT_EQ(reply->body.error().message, "send queue is full");
  const std::string flood(100'000, 'x');
  EXPECT_LT(encode_error(6, {Code::kInternal, flood})[2].size(), 400U);
}

TEST(ProtocolTest, RepliesOfAnotherKindAreRefused) {
  const Request ping{.body = PingRequest(), .request_id = 5};
  const Frames ack = encode_reply(ping, FenceAck());
  EXPECT_FALSE(decode_reply(ack, Request{.body = LookupRequest()}.body.index())->body);
  EXPECT_FALSE(decode_reply(ack, Request{.body = ResetRequest()}.body.index())->body);
  EXPECT_FALSE(decode_reply({}, 0));
  EXPECT_FALSE(decode_reply(hex_frames({"00"}), 0));
  EXPECT_FALSE(decode_reply({hex("02"), Bytes(8), hex("80")}, 0));
  EXPECT_FALSE(decode_reply({hex("01"), Bytes(7), hex("80")}, 0));
  EXPECT_FALSE(decode_reply({hex("01"), Bytes(8)}, 0));
  EXPECT_FALSE(decode_reply({hex("01"), Bytes(8), hex("c1")}, 0));
}

TEST(ProtocolTest, ForeignRepliesAreReadAsUpstreamReadsThem) {
  EXPECT_EQ(decode_foreign_lookup_reply(hex_frames({"00000020"})), 32U);
  EXPECT_EQ(decode_foreign_lookup_reply(hex_frames({"000000200000000000000020"})), 32U);
  EXPECT_FALSE(decode_foreign_lookup_reply(hex_frames({"00"})));
  EXPECT_FALSE(decode_foreign_lookup_reply(hex_frames({"0000002000"})));
  EXPECT_FALSE(decode_foreign_lookup_reply({}));
  EXPECT_EQ(decode_foreign_reset_reply(hex_frames({"01"})), true);
  EXPECT_EQ(decode_foreign_reset_reply(hex_frames({"00"})), false);
  EXPECT_FALSE(decode_foreign_reset_reply(hex_frames({"0101"})));
  EXPECT_FALSE(decode_foreign_reset_reply({}));
}

TEST(ProtocolTest, BadMessagesAreRefusedByName) {
  const Bytes lookup = to_bytes(LOOKUP_MSG);
  const Bytes tokens = hex("00000021");
  const Bytes id(8);
  const Frames own = encode_request(1, Request{.body = make_lookup(2)});
  const auto own_map = [&](Bytes map) { return Frames{own[0], own[1], std::move(map)}; };
  const std::vector<std::pair<Frames, std::string>> cases = {
      {{}, "empty"},
      {{{}}, "unknown tag of 0 bytes"},
      {{to_bytes("LOOKUP")}, "unknown tag"},
      {{lookup}, "has 1 frames"},
      {{lookup, tokens}, "has 2 frames"},
      {{lookup, hex("21"), hex("0020"), Bytes(64)}, "num_tokens) has 1 bytes, not 4"},
      {{lookup, Bytes(64, 0xff), hex("0020"), Bytes(64)}, "num_tokens) has 64 bytes"},
      {{lookup, {}, hex("90")}, "num_tokens) has 0 bytes"},
      {{lookup, tokens, hex("0020"), Bytes(63)}, "63 bytes of hashes are no multiple"},
      {{lookup, tokens, hex("0000"), Bytes(1)}, "hash_len is 0"},
      {{lookup, tokens, hex("0021"), Bytes(33)}, "hash_len is 33"},
      {{lookup, tokens, hex("ffff"), Bytes(65535)}, "hash_len is 65535"},
      {{lookup, tokens, {}}, "frame 2: not one msgpack list"},
      {{lookup, tokens, hex("0020")}, "frame 2: not one msgpack list"},
      {{lookup, tokens, hex("0020"), Bytes(64), {}, {}}, "frame 2: not one msgpack list"},
      {{lookup, tokens, hex("90"), to_bytes("junk")}, "frame 3: not one msgpack list"},
      {{lookup, tokens, hex("9090")}, "frame 2: not one msgpack list"},
      {{lookup, tokens, hex("91a3303066")}, "not 1 to 32 bytes in hex"},
      {{lookup, tokens, hex("91a43030667a")}, "not 1 to 32 bytes in hex"},
      {{lookup, tokens, hex("91a0")}, "frame 2: a block hash"},
      {{lookup, tokens, encode_msgpack_strings({std::string(66, 'a')})}, "frame 2: a block hash"},
      {{lookup, tokens, hex("9101")}, "frame 2: not one msgpack list"},
      {{lookup, tokens, Bytes(1000, 0x91)}, "frame 2: not one msgpack list"},
      {{lookup, tokens, hex("ddffffffff")}, "frame 2: not one msgpack list"},
      {{lookup, tokens, hex("91dbffffffff")}, "frame 2: not one msgpack list"},
      {{to_bytes(RESET_MSG), to_bytes("junk")}, "reset has 2 frames"},
      {{own[0]}, "nm.lookup has 1 frames"},
      {{own[0], own[1], own[2], {}}, "nm.lookup has 4 frames"},
      {{own[0], Bytes(7), own[2]}, "request id) has 7 bytes"},
      {{to_bytes("nm.unheard"), id, hex("80")}, "unknown command 'nm.unheard'"},
      {own_map({}), "not one msgpack map"},
      {own_map(hex("80")), "'scope' is missing"},
      {own_map(hex("90")), "not one msgpack map"},
      {own_map(hex("8180")), "not one msgpack map"},
      {own_map(hex("c1")), "not one msgpack map"},
      {own_map(hex("8000")), "not one msgpack map"},
      {own_map(hex("dfffffffff")), "not one msgpack map"},
      {own_map(hex("81a161c6ffffffff00")), "not one msgpack map"},
      {own_map(hex("82a16101a16102")), "not one msgpack map"},
      {own_map(hex("810101")), "not one msgpack map"},
      {own_map(hex("81a161c9ffffffff01")), "not one msgpack map"},
      {{to_bytes(FENCE_MSG), id, hex("81a565706f6368ff")}, "'epoch' is not an unsigned integer"},
      {{to_bytes(FENCE_MSG), id, hex("81a565706f6368a131")}, "'epoch' is not an unsigned integer"},
      {{to_bytes(SCOPES_MSG), id, hex("81a56166746572c40101")}, "'after' is not of 16 bytes"},
      {{to_bytes(SCOPES_MSG), id, hex("81a5616674657201")}, "'after' is not a bin"},
      {{to_bytes(PURGE_MSG), id, hex("80")}, "either 'scope' or 'namespace'"},
      {{to_bytes(PURGE_MSG), id, hex("82a573636f7065c400a96e616d657370616365a161")},
       "either 'scope' or 'namespace'"},
      {{to_bytes(PURGE_MSG), id, hex("81a573636f7065c400")}, "'scope' is not of 16 bytes"},
      {{to_bytes(PURGE_MSG), id, hex("81a96e616d65737061636501")}, "'namespace' is not a string"},
  };
  for (const auto& [frames, expected] : cases) EXPECT_THAT(error_of(frames), HasSubstr(expected));
}

TEST(ProtocolTest, BadFieldsOfALookupAreRefusedByName) {
  const auto with = [](std::size_t scope, std::uint64_t tokens, std::uint64_t hash_len,
                       std::size_t blob) {
    MsgpackMapWriter map(5);
    map.put_bytes("scope", Bytes(scope)).put_uint64("epoch", 0).put_uint64("num_tokens", tokens);
    map.put_uint64("hash_len", hash_len).put_bytes("hashes", Bytes(blob));
    return Frames{to_bytes(SCOPED_LOOKUP_MSG), Bytes(8), map.take()};
  };
  EXPECT_EQ(error_of(with(16, 33, 32, 64)), "accepted");
  EXPECT_THAT(error_of(with(15, 33, 32, 64)), HasSubstr("'scope' is not of 16 bytes"));
  EXPECT_THAT(error_of(with(16, 1ULL << 32, 32, 64)), HasSubstr("'num_tokens' is over 32 bits"));
  EXPECT_THAT(error_of(with(16, 33, UINT64_MAX, 64)), HasSubstr("32 is the most"));
  EXPECT_THAT(error_of(with(16, 33, 0, 64)), HasSubstr("hash_len is 0"));
  EXPECT_THAT(error_of(with(16, 33, 32, 65)), HasSubstr("no multiple"));
}

TEST(ProtocolTest, LimitsHold) {
  const LookupRequest lookup = make_lookup(11);
  const ProtocolLimits few{.hashes_max = 10};
  EXPECT_THAT(error_of(encode_request(1, Request{.body = lookup}), few), HasSubstr("limit"));
  for (const ForeignDialect dialect : {ForeignDialect::kVllm, ForeignDialect::kSeed}) {
    EXPECT_THAT(error_of(encode_foreign_lookup(dialect, lookup), few), HasSubstr("limit"));
  }
  EXPECT_THAT(error_of(Frames(9), {.frames_max = 8}), HasSubstr("has 9 frames"));
  EXPECT_THAT(error_of({Bytes(60), Bytes(60)}, {.message_bytes_max = 100}), HasSubstr("120 bytes"));
}

TEST(ProtocolTest, DeepAndHugeMapsCostNothing) {
  const auto nested = [](std::size_t depth) {
    Bytes map = hex("82a565706f63680101");  // {"epoch": 1, <the next key>: ...
    map.back() = 0xa1;
    map.push_back('x');
    map.insert(map.end(), depth, 0x91);  // a list in a list in a list ...
    map.push_back(0xc0);
    return Frames{to_bytes(FENCE_MSG), Bytes(8), map};
  };
  EXPECT_EQ(error_of(nested(3)), "accepted");
  EXPECT_THAT(error_of(nested(9)), HasSubstr("within the limits"));
  EXPECT_THAT(error_of(nested(10'000'000)), HasSubstr("within the limits"));
  Bytes wide = hex("82a565706f636801a178dd00989680");
  wide.insert(wide.end(), 10'000'000, 0xc0);
  EXPECT_THAT(error_of({to_bytes(FENCE_MSG), Bytes(8), wide}), HasSubstr("within the limits"));
}

TEST(ProtocolTest, RequestIdsAreFoundInOtherwiseBadMessages) {
  const Bytes id = hex("0102030405060708");
  EXPECT_EQ(peek_request_id({to_bytes("nm.unheard"), id, to_bytes("junk"), {}}),
            0x0102030405060708U);
  EXPECT_EQ(peek_request_id({to_bytes("nm.lookup"), Bytes(7)}), std::nullopt);
  EXPECT_EQ(peek_request_id({to_bytes("nm.lookup")}), std::nullopt);
  EXPECT_EQ(peek_request_id({to_bytes("lookup"), id}), std::nullopt);
  EXPECT_EQ(peek_request_id({}), std::nullopt);
}

TEST(ProtocolTest, HitLengthLeavesATokenToCompute) {
  EXPECT_EQ(hit_length_tokens(0, 16, 33), 0U);
  EXPECT_EQ(hit_length_tokens(2, 16, 33), 32U);
  EXPECT_EQ(hit_length_tokens(2, 16, 32), 16U);
  EXPECT_EQ(hit_length_tokens(1, 16, 16), 0U);
  EXPECT_EQ(hit_length_tokens(9, 16, 33), 32U);  // more hits than full blocks
  EXPECT_EQ(hit_length_tokens(SIZE_MAX, 1, UINT32_MAX), UINT32_MAX - 1);
  EXPECT_EQ(hit_length_tokens(3, 16, 0), 0U);
}

}  // namespace
}  // namespace newmoon
