#include "admin/protocol.h"

#include <algorithm>
#include <array>
#include <utility>

#include "admin/msgpack_map.h"
#include "admin/store_codec.h"

namespace newmoon {
namespace {

constexpr std::string_view kOwnPrefix = "nm.";
constexpr std::size_t kOwnFrames = 3;  // tag or status, request id, map
constexpr std::size_t kErrorTextMax = 300;

bool is_own(std::string_view tag) { return tag.starts_with(kOwnPrefix); }

std::unexpected<Error> bad(std::string message) {
  return fail(Code::kBadRequest, std::move(message));
}

std::unexpected<Error> wrong_size(std::size_t frame, std::string_view name, std::size_t seen,
                                  std::size_t expected) {
  return bad("frame " + std::to_string(frame) + " (" + std::string(name) + ") has " +
             std::to_string(seen) + " bytes, not " + std::to_string(expected));
}

std::unexpected<Error> wrong_count(std::string_view what, const Frames& frames,
                                   std::string_view expected) {
  return bad(std::string(what) + " has " + std::to_string(frames.size()) + " frames, not " +
             std::string(expected));
}

// ---- hashes ----

Result<std::vector<BlockHash>> split_hashes(ByteView blob, std::size_t hash_len,
                                            const ProtocolLimits& limits) {
  if (hash_len == 0) {
    if (blob.empty()) return std::vector<BlockHash>();
    return bad("hash_len is 0 but there are " + std::to_string(blob.size()) + " bytes of hashes");
  }
  if (hash_len > BlockHash::kMaxSize) {
    return bad("hash_len is " + std::to_string(hash_len) + "; 32 is the most a block hash has");
  }
  if (blob.size() % hash_len != 0) {
    return bad(std::to_string(blob.size()) + " bytes of hashes are no multiple of hash_len " +
               std::to_string(hash_len));
  }
  const std::size_t count = blob.size() / hash_len;
  if (count > limits.hashes_max) {
    return bad(std::to_string(count) + " hashes; " + std::to_string(limits.hashes_max) +
               " is the limit");
  }
  std::vector<BlockHash> hashes;
  hashes.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    hashes.emplace_back(blob.subspan(i * hash_len, hash_len));
  }
  return hashes;
}

// Those that share the size of the first, which is what one blob can hold.
std::span<const BlockHash> same_size_prefix(const std::vector<BlockHash>& hashes) {
  const auto other = std::ranges::find_if(hashes, [&](const BlockHash& hash) {
    return hash.bytes().size() != hashes.front().bytes().size();
  });
  return {hashes.begin(), other};
}

std::size_t size_of_each(std::span<const BlockHash> hashes) {
  return hashes.empty() ? 0 : hashes.front().bytes().size();
}

void join_hashes(std::span<const BlockHash> hashes, MutableByteView out) {
  for (const BlockHash& hash : hashes) {
    std::ranges::copy(hash.bytes(), out.begin());
    out = out.subspan(hash.bytes().size());
  }
}

Result<BlockHash> hash_from_hex(std::string_view hex) {
  std::array<std::uint8_t, BlockHash::kMaxSize> buffer;
  const std::size_t size = hex.size() / 2;
  if (size == 0 || size > buffer.size() || !from_hex(hex, MutableByteView(buffer).first(size))) {
    return bad("a block hash is not 1 to 32 bytes in hex");
  }
  return BlockHash(ByteView(buffer).first(size));
}

// ---- requests in the forms of vLLM ----

Result<std::vector<BlockHash>> decode_seed_hashes(const Frames& frames,
                                                  const ProtocolLimits& limits) {
  std::vector<BlockHash> hashes;
  for (std::size_t i = 2; i < frames.size(); ++i) {
    const auto strings = decode_msgpack_strings(frames[i], limits.hashes_max - hashes.size());
    if (!strings) return bad("frame " + std::to_string(i) + ": " + strings.error().message);
    hashes.reserve(hashes.size() + strings->size());
    for (const std::string_view text : *strings) {
      Result<BlockHash> hash = hash_from_hex(text);
      if (!hash) return bad("frame " + std::to_string(i) + ": " + hash.error().message);
      hashes.push_back(*hash);
    }
  }
  return hashes;
}

Result<Request> decode_foreign_lookup(const Frames& frames, const ProtocolLimits& limits) {
  if (frames.size() < 3) return wrong_count("lookup", frames, "3 or more");
  if (frames[1].size() != 4) return wrong_size(1, "num_tokens", frames[1].size(), 4);
  const bool vllm_0_32 = frames[2].size() == 2 && (frames.size() == 4 || frames.size() == 5);
  Result<std::vector<BlockHash>> hashes =
      vllm_0_32 ? split_hashes(frames[3], load_be<std::uint16_t>(frames[2].data()), limits)
                : decode_seed_hashes(frames, limits);
  if (!hashes) return std::unexpected(hashes.error());
  LookupRequest lookup;
  lookup.num_tokens = load_be<std::uint32_t>(frames[1].data());
  lookup.block_hashes = std::move(*hashes);
  return Request{.body = std::move(lookup), .foreign = true};
}

Result<Request> decode_foreign_reset(const Frames& frames) {
  if (frames.size() != 1) return wrong_count("reset", frames, "1");
  return Request{.body = ResetRequest{.mode = ResetMode::kRemoveAll, .remove = true},
                 .foreign = true};
}

// ---- requests in our own form ----

using Body = decltype(Request::body);

Result<Body> decode_scoped_lookup(MsgpackMap& map, const ProtocolLimits& limits) {
  const ByteView scope = map.bytes("scope");
  const std::uint64_t num_tokens = map.uint64("num_tokens");
  const std::uint64_t hash_len = map.uint64("hash_len");
  const ByteView blob = map.bytes("hashes");
  LookupRequest lookup;
  lookup.epoch = map.uint64("epoch");
  if (!map.status()) return std::unexpected(map.status().error());
  if (scope.size() != sizeof(ScopeId::bytes)) return bad("'scope' is not of 16 bytes");
  if (num_tokens > UINT32_MAX) return bad("'num_tokens' is over 32 bits");
  Result<std::vector<BlockHash>> hashes = split_hashes(blob, hash_len, limits);
  if (!hashes) return std::unexpected(hashes.error());
  std::ranges::copy(scope, lookup.scope.emplace().bytes.begin());
  lookup.num_tokens = static_cast<std::uint32_t>(num_tokens);
  lookup.block_hashes = std::move(*hashes);
  return lookup;
}

Result<Body> decode_fence(MsgpackMap& map) {
  const FenceRequest fence{.epoch = map.uint64("epoch")};
  if (!map.status()) return std::unexpected(map.status().error());
  return fence;
}

Result<Body> decode_scoped_reset(MsgpackMap& map) {
  ResetRequest reset;
  reset.epoch = map.uint64("epoch");
  reset.remove = map.boolean("remove");
  const std::string_view mode = map.text("mode");
  if (!map.status()) return std::unexpected(map.status().error());
  if (mode == to_string(ResetMode::kFence)) return reset;
  if (mode != to_string(ResetMode::kRemoveAll)) {
    return bad("'mode' is neither fence nor remove_all");
  }
  reset.mode = ResetMode::kRemoveAll;
  return reset;
}

Result<Body> decode_own_body(std::string_view tag, MsgpackMap& map, const ProtocolLimits& limits) {
  if (tag == SCOPED_LOOKUP_MSG) return decode_scoped_lookup(map, limits);
  if (tag == FENCE_MSG) return decode_fence(map);
  if (tag == SCOPED_RESET_MSG) return decode_scoped_reset(map);
  if (tag == PING_MSG) return PingRequest();
  if (tag == DRAIN_MSG) return DrainRequest();
  if (tag == STATS_MSG) return StatsRequest();
  if (tag == SCOPES_MSG) return decode_scopes_request(map);
  if (tag == PURGE_MSG) return decode_purge_request(map);
  if (tag == WEIGHTS_WRITTEN_MSG) return WeightsWrittenRequest();
  return bad("unknown command '" + std::string(tag.substr(0, 32)) + "'");
}

Result<Request> decode_own(const Frames& frames, const ProtocolLimits& limits) {
  const std::string_view tag = as_text(frames[0]);
  if (frames.size() != kOwnFrames) return wrong_count(tag.substr(0, 32), frames, "3");
  if (frames[1].size() != 8) return wrong_size(1, "request id", frames[1].size(), 8);
  Result<MsgpackMap> map = MsgpackMap::decode(frames[2]);
  if (!map) return std::unexpected(map.error());
  Result<Body> body = decode_own_body(tag, *map, limits);
  if (!body) return std::unexpected(body.error());
  return Request{.body = std::move(*body), .request_id = load_be<std::uint64_t>(frames[1].data())};
}

Status check_limits(const Frames& frames, const ProtocolLimits& limits) {
  if (frames.empty()) return bad("the message is empty");
  if (frames.size() > limits.frames_max) return wrong_count("the message", frames, "fewer");
  std::size_t bytes = 0;
  for (const Bytes& frame : frames) bytes += frame.size();
  if (bytes > limits.message_bytes_max) {
    return bad("the message has " + std::to_string(bytes) + " bytes; " +
               std::to_string(limits.message_bytes_max) + " is the limit");
  }
  return {};
}

Bytes encode_be(std::uint64_t value) {
  Bytes out;
  append_be(out, value);
  return out;
}

// One overload a command: tag and map of its request.
std::pair<std::string_view, Bytes> encode_body(const LookupRequest& lookup) {
  const std::span<const BlockHash> hashes = same_size_prefix(lookup.block_hashes);
  const std::size_t hash_len = size_of_each(hashes);
  MsgpackMapWriter map(5);
  map.put_bytes("scope", lookup.scope.value_or(ScopeId()).bytes);
  map.put_uint64("epoch", lookup.epoch);
  map.put_uint64("num_tokens", lookup.num_tokens);
  map.put_uint64("hash_len", hash_len);
  join_hashes(hashes, map.put_bytes("hashes", hashes.size() * hash_len));
  return {SCOPED_LOOKUP_MSG, map.take()};
}
std::pair<std::string_view, Bytes> encode_body(const FenceRequest& fence) {
  return {FENCE_MSG, MsgpackMapWriter(1).put_uint64("epoch", fence.epoch).take()};
}
std::pair<std::string_view, Bytes> encode_body(const ResetRequest& reset) {
  MsgpackMapWriter map(3);
  map.put_uint64("epoch", reset.epoch).put_text("mode", to_string(reset.mode));
  return {SCOPED_RESET_MSG, map.put_boolean("remove", reset.remove).take()};
}
std::pair<std::string_view, Bytes> encode_body(const PingRequest&) {
  return {PING_MSG, MsgpackMapWriter(0).take()};
}
std::pair<std::string_view, Bytes> encode_body(const DrainRequest&) {
  return {DRAIN_MSG, MsgpackMapWriter(0).take()};
}
std::pair<std::string_view, Bytes> encode_body(const StatsRequest& stats) {
  return {STATS_MSG, encode_map(stats)};
}
std::pair<std::string_view, Bytes> encode_body(const ScopesRequest& scopes) {
  return {SCOPES_MSG, encode_map(scopes)};
}
std::pair<std::string_view, Bytes> encode_body(const PurgeRequest& purge) {
  return {PURGE_MSG, encode_map(purge)};
}
std::pair<std::string_view, Bytes> encode_body(const WeightsWrittenRequest&) {
  return {WEIGHTS_WRITTEN_MSG, MsgpackMapWriter(0).take()};
}

// ---- replies ----

void put_fence_ack(MsgpackMapWriter& map, const FenceAck& ack) {
  map.put_uint64("floor", ack.floor)
      .put_uint64("dropped_loads", ack.dropped_loads)
      .put_uint64("dropped_saves", ack.dropped_saves)
      .put_uint64("weight_writes", ack.weight_writes);
}

Bytes encode_reply_map(std::uint32_t hit_tokens) {
  return MsgpackMapWriter(1).put_uint64("hit_tokens", hit_tokens).take();
}
Bytes encode_reply_map(const FenceAck& ack) {
  MsgpackMapWriter map(4);
  put_fence_ack(map, ack);
  return map.take();
}
Bytes encode_reply_map(const ResetAck& ack) {
  MsgpackMapWriter map(6);
  put_fence_ack(map, ack.fence);
  return map.put_uint64("removed", ack.removed).put_uint64("remaining", ack.remaining).take();
}

Bytes encode_reply_map(const RankStats& stats) { return encode_map(stats); }
Bytes encode_reply_map(const ScopesPage& page) { return encode_map(page); }
Bytes encode_reply_map(const PurgeAck& ack) { return encode_map(ack); }

FenceAck read_fence_ack(MsgpackMap& map) {
  return {.floor = map.uint64("floor"),
          .dropped_loads = map.uint64("dropped_loads"),
          .dropped_saves = map.uint64("dropped_saves"),
          .weight_writes = map.uint64("weight_writes")};
}

ReplyBody read_reset_ack(MsgpackMap& map) {
  return ResetAck{.fence = read_fence_ack(map),
                  .removed = map.uint64("removed"),
                  .remaining = map.uint64("remaining")};
}

template <class Command>
bool is_index_of(std::size_t index) {
  return index == Body(Command()).index();
}

Result<ReplyBody> decode_reply_body(MsgpackMap& map, std::size_t request_index) {
  if (is_index_of<StatsRequest>(request_index)) return decode_rank_stats(map);
  if (is_index_of<ScopesRequest>(request_index)) return decode_scopes_page(map);
  if (is_index_of<PurgeRequest>(request_index)) return decode_purge_ack(map);
  ReplyBody body;
  if (is_index_of<LookupRequest>(request_index)) {
    const std::uint64_t hit_tokens = map.uint64("hit_tokens");
    if (hit_tokens > UINT32_MAX) return bad("'hit_tokens' is over 32 bits");
    body = static_cast<std::uint32_t>(hit_tokens);
  } else if (is_index_of<ResetRequest>(request_index)) {
    body = read_reset_ack(map);
  } else {
    body = read_fence_ack(map);
  }
  if (!map.status()) return std::unexpected(map.status().error());
  return body;
}

Result<ReplyBody> decode_error_body(MsgpackMap& map) {
  const Code code = code_from_wire(map.text("code"));
  const std::string message(map.text("message").substr(0, kErrorTextMax));
  if (!map.status()) return std::unexpected(map.status().error());
  return fail(code, message);
}

}  // namespace

std::string_view to_string(ResetMode mode) {
  return mode == ResetMode::kFence ? "fence" : "remove_all";
}

Result<Request> decode_request(const Frames& frames, const ProtocolLimits& limits) {
  if (const Status fits = check_limits(frames, limits); !fits) {
    return std::unexpected(fits.error());
  }
  const std::string_view tag = as_text(frames[0]);
  if (tag == LOOKUP_MSG) return decode_foreign_lookup(frames, limits);
  if (tag == RESET_MSG) return decode_foreign_reset(frames);
  if (is_own(tag)) return decode_own(frames, limits);
  return bad("unknown tag of " + std::to_string(tag.size()) + " bytes, hex " +
             to_hex(as_bytes(tag.substr(0, 16))));
}

std::optional<std::uint64_t> peek_request_id(const Frames& frames) {
  if (frames.size() < 2 || !is_own(as_text(frames[0])) || frames[1].size() != 8) {
    return std::nullopt;
  }
  return load_be<std::uint64_t>(frames[1].data());
}

Frames encode_request(std::uint64_t request_id, const Request& request) {
  auto [tag, map] = std::visit([](const auto& body) { return encode_body(body); }, request.body);
  return {to_bytes(tag), encode_be(request_id), std::move(map)};
}

Frames encode_foreign_lookup(ForeignDialect dialect, const LookupRequest& request) {
  Bytes num_tokens;
  append_be(num_tokens, request.num_tokens);
  Frames frames = {to_bytes(LOOKUP_MSG), std::move(num_tokens)};
  if (dialect == ForeignDialect::kSeed) {
    std::vector<std::string> texts;
    texts.reserve(request.block_hashes.size());
    for (const BlockHash& hash : request.block_hashes) texts.push_back(hash.hex());
    frames.push_back(encode_msgpack_strings(texts));
    return frames;
  }
  const std::span<const BlockHash> hashes = same_size_prefix(request.block_hashes);
  Bytes hash_len;
  append_be(hash_len, static_cast<std::uint16_t>(size_of_each(hashes)));
  Bytes blob(hashes.size() * size_of_each(hashes));
  join_hashes(hashes, blob);
  frames.push_back(std::move(hash_len));
  frames.push_back(std::move(blob));
  return frames;
}

Frames encode_foreign_reset() { return {to_bytes(RESET_MSG)}; }

Frames encode_reply(const Request& request, const ReplyBody& body) {
  if (!request.foreign) {
    Bytes map = std::visit([](const auto& ack) { return encode_reply_map(ack); }, body);
    return {to_bytes(RESP_OK), encode_be(request.request_id), std::move(map)};
  }
  const auto* hit_tokens = std::get_if<std::uint32_t>(&body);
  if (hit_tokens == nullptr) return {to_bytes(RESP_OK)};
  Bytes reply;
  append_be(reply, *hit_tokens);
  return {std::move(reply)};
}

Frames encode_error(std::optional<std::uint64_t> request_id, const Error& error) {
  if (!request_id) return {to_bytes(RESP_ERR)};
  MsgpackMapWriter map(2);
  map.put_text("code", traits(error.code).wire_name);
  map.put_text("message", std::string_view(error.message).substr(0, kErrorTextMax));
  return {to_bytes(RESP_ERR), encode_be(*request_id), map.take()};
}

Result<Reply> decode_reply(const Frames& frames, std::size_t request_index) {
  const std::optional<std::uint64_t> request_id = peek_reply_id(frames);
  if (!request_id || frames.size() != kOwnFrames) return bad("not a reply of a Newmoon server");
  Result<MsgpackMap> map = MsgpackMap::decode(frames[2]);
  if (!map) return std::unexpected(map.error());
  const bool ok = as_text(frames[0]) == RESP_OK;
  return Reply{*request_id, ok ? decode_reply_body(*map, request_index) : decode_error_body(*map)};
}

std::optional<std::uint64_t> peek_reply_id(const Frames& frames) {
  if (frames.size() < 2 || frames[1].size() != 8) return std::nullopt;
  const std::string_view status = as_text(frames[0]);
  if (status != RESP_OK && status != RESP_ERR) return std::nullopt;
  return load_be<std::uint64_t>(frames[1].data());
}

Result<std::uint32_t> decode_foreign_lookup_reply(const Frames& frames) {
  // The hit length, then entries of 8 bytes for KV groups whose tail ends elsewhere.
  if (frames.size() != 1 || frames[0].size() < 4 || (frames[0].size() - 4) % 8 != 0) {
    return bad("not a reply to a lookup");
  }
  return load_be<std::uint32_t>(frames[0].data());
}

Result<bool> decode_foreign_reset_reply(const Frames& frames) {
  if (frames.size() == 1 && as_text(frames[0]) == RESP_OK) return true;
  if (frames.size() == 1 && as_text(frames[0]) == RESP_ERR) return false;
  return bad("not a reply to a reset");
}

std::uint32_t hit_length_tokens(std::size_t hit_blocks, int block_size, std::uint32_t num_tokens) {
  const auto block_tokens = static_cast<std::uint32_t>(block_size);
  const std::size_t full_blocks = num_tokens / block_tokens;
  const auto blocks = static_cast<std::uint32_t>(std::min(hit_blocks, full_blocks));
  const std::uint32_t tokens = blocks * block_tokens;
  return blocks > 0 && tokens == num_tokens ? tokens - block_tokens : tokens;
}

}  // namespace newmoon
