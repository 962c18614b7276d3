#include "store/ipc_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace newmoon::ipc {
namespace {

constexpr std::size_t kScopeBytes = 16;
constexpr std::size_t kHashEntryBytes = 1 + BlockHash::kMaxSize;
constexpr std::size_t kScopeEntryBytes = kScopeBytes + 8 + 8 + 4 + 4;  // and texts

std::unexpected<Error> bad(const std::string& what) {
  return fail(Code::kBadRequest, "store ipc: " + what);
}

std::unexpected<Error> corrupt(const std::string& what) {
  return fail(Code::kCorrupt, "store ipc reply: " + what);
}

template <class Int>
void append_le(Bytes& out, Int value) {
  out.resize(out.size() + sizeof(Int));
  store_le<Int>(out.data() + out.size() - sizeof(Int), value);
}

ScopeId scope_from(const std::uint8_t* from) {
  ScopeId scope;
  std::memcpy(scope.bytes.data(), from, kScopeBytes);
  return scope;
}

Shard unpack(std::uint64_t packed) {
  return {.tp = static_cast<std::uint16_t>(packed >> 48),
          .pp = static_cast<std::uint16_t>(packed >> 32),
          .dcp = static_cast<std::uint16_t>(packed >> 16),
          .group = static_cast<std::uint16_t>(packed)};
}

// u8 size, then 32 bytes, zero behind the size.
void encode_hash(const BlockHash& hash, std::uint8_t* to) {
  const ByteView bytes = hash.bytes();
  *to = static_cast<std::uint8_t>(bytes.size());
  std::memset(to + 1, 0, BlockHash::kMaxSize);
  std::memcpy(to + 1, bytes.data(), bytes.size());
}

Result<BlockHash> decode_hash(const std::uint8_t* from) {
  if (*from > BlockHash::kMaxSize) return bad("a block hash of over 32 bytes");
  return BlockHash(ByteView(from + 1, *from));
}

std::string_view cut(std::string_view text) { return text.substr(0, kTextBytesMax); }

// u16 size, then the text.
void append_text(Bytes& frame, std::string_view text) {
  append_le(frame, static_cast<std::uint16_t>(cut(text).size()));
  append(frame, as_bytes(cut(text)));
}

// From the front of the frame, which is then the rest.
Result<std::string> take_text(ByteView& frame) {
  if (frame.size() < 2) return corrupt("a text is missing");
  const std::size_t size = load_le<std::uint16_t>(frame.data());
  frame = frame.subspan(2);
  if (size > frame.size()) return corrupt("a text is cut short");
  std::string text(as_text(frame.first(size)));
  frame = frame.subspan(size);
  return text;
}

// In the order of Code; 0 is success.
constexpr Code kCodes[] = {Code::kMiss, Code::kBadRequest, Code::kUnavailable, Code::kDeadline,
                           Code::kBusy, Code::kCorrupt,    Code::kFenced,      Code::kInternal};

}  // namespace

std::array<std::uint8_t, Head::kBytes> encode_head(const Head& head) {
  std::array<std::uint8_t, Head::kBytes> frame{};
  store_le<std::uint32_t>(&frame[0], kMagic);
  frame[4] = kVersion;
  frame[5] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(head.op) |
                                       (head.reply ? Head::kReply : 0));
  store_le<std::uint16_t>(&frame[6], head.flags);
  store_le<std::uint64_t>(&frame[8], head.request_id);
  store_le<std::uint32_t>(&frame[16], head.count);
  store_le<std::uint32_t>(&frame[20], head.second_count);
  return frame;
}

Result<Head> decode_head(ByteView frame) {
  if (frame.size() != Head::kBytes) return bad("the first frame has not 24 bytes");
  if (load_le<std::uint32_t>(&frame[0]) != kMagic) return bad("the first frame has another magic");
  if (frame[4] != kVersion) return bad("version " + std::to_string(frame[4]) + " is unknown");
  const std::uint8_t op = frame[5] & ~Head::kReply;
  if (op < static_cast<std::uint8_t>(Op::kPut) || op > static_cast<std::uint8_t>(Op::kPing)) {
    return bad("operation " + std::to_string(op) + " is unknown");
  }
  return Head{.op = static_cast<Op>(op),
              .reply = (frame[5] & Head::kReply) != 0,
              .flags = load_le<std::uint16_t>(&frame[6]),
              .request_id = load_le<std::uint64_t>(&frame[8]),
              .count = load_le<std::uint32_t>(&frame[16]),
              .second_count = load_le<std::uint32_t>(&frame[20])};
}

std::uint8_t to_wire(const Status& status) {
  if (status) return 0;
  const auto at = std::ranges::find(kCodes, status.error().code);
  return static_cast<std::uint8_t>(at - std::begin(kCodes) + 1);
}

Status status_from_wire(std::uint8_t code, std::string message) {
  if (code == 0) return {};
  const bool known = code <= std::size(kCodes);
  return fail(known ? kCodes[code - 1] : Code::kInternal, std::move(message));
}

Result<Key> key_of(const ValueHeader& header) {
  if (header.block_hash_bytes > BlockHash::kMaxSize) return bad("a block hash of over 32 bytes");
  return Key{ScopeId{header.scope_id}, unpack(header.shard),
             BlockHash(ByteView(header.block_hash.data(), header.block_hash_bytes))};
}

void encode_get_entry(const GetEntry& entry, std::uint8_t* to) {
  std::memset(to, 0, GetEntry::kBytes);
  std::memcpy(to, entry.key.scope.bytes.data(), kScopeBytes);
  store_le<std::uint64_t>(to + 16, entry.key.shard.packed());
  store_le<std::uint64_t>(to + 24, entry.payload_bytes);
  encode_hash(entry.key.block, to + 32);
}

Result<GetEntry> decode_get_entry(const std::uint8_t* from) {
  Result<BlockHash> block = decode_hash(from + 32);
  if (!block) return std::unexpected(block.error());
  return GetEntry{{scope_from(from), unpack(load_le<std::uint64_t>(from + 16)), *block},
                  load_le<std::uint64_t>(from + 24)};
}

Bytes encode_hit_request(const ScopeId& scope, std::span<const Shard> shards,
                         std::span<const BlockHash> blocks) {
  Bytes frame(kScopeBytes + shards.size() * 8 + blocks.size() * kHashEntryBytes);
  std::uint8_t* to = frame.data();
  std::memcpy(to, scope.bytes.data(), kScopeBytes);
  to += kScopeBytes;
  for (const Shard& shard : shards) {
    store_le<std::uint64_t>(to, shard.packed());
    to += 8;
  }
  for (const BlockHash& block : blocks) {
    encode_hash(block, to);
    to += kHashEntryBytes;
  }
  return frame;
}

Result<HitRequest> decode_hit_request(const Head& head, ByteView frame) {
  if (head.count > kBlocksMax) return bad("a lookup of over 1,000,000 blocks");
  if (head.second_count > kShardsMax) return bad("a lookup of over 4,096 shards");
  // A quick request does not wait behind minutes of looking up.
  if (std::uint64_t{head.count} * head.second_count > kHitsMax) {
    return bad("a lookup of over 4,000,000 blocks x shards");
  }
  const std::size_t bytes =
      kScopeBytes + std::size_t{head.second_count} * 8 + std::size_t{head.count} * kHashEntryBytes;
  if (frame.size() != bytes) return bad("a lookup of another size than its counts");
  HitRequest request{.scope = scope_from(frame.data()), .shards = {}, .blocks = {}};
  const std::uint8_t* from = frame.data() + kScopeBytes;
  for (std::uint32_t i = 0; i < head.second_count; ++i, from += 8) {
    request.shards.push_back(unpack(load_le<std::uint64_t>(from)));
  }
  request.blocks.reserve(head.count);
  for (std::uint32_t i = 0; i < head.count; ++i, from += kHashEntryBytes) {
    const Result<BlockHash> block = decode_hash(from);
    if (!block) return std::unexpected(block.error());
    request.blocks.push_back(*block);
  }
  return request;
}

Bytes encode_scope_request(const ScopeId& scope, std::string_view text) {
  Bytes frame(scope.bytes.begin(), scope.bytes.end());
  append(frame, as_bytes(cut(text)));
  return frame;
}

Result<ScopeRequest> decode_scope_request(ByteView frame) {
  if (frame.size() < kScopeBytes) return bad("a scope id of under 16 bytes");
  if (frame.size() > kScopeBytes + kTextBytesMax) return bad("a description of over 1,024 bytes");
  return ScopeRequest{scope_from(frame.data()), std::string(as_text(frame.subspan(kScopeBytes)))};
}

Bytes encode_hold_request(const ScopeId& scope, std::string_view holder, Duration lease) {
  const auto lease_ms = std::chrono::ceil<std::chrono::milliseconds>(lease).count();
  Bytes frame(scope.bytes.begin(), scope.bytes.end());
  append_le(frame, static_cast<std::uint64_t>(std::max<std::int64_t>(0, lease_ms)));
  append(frame, as_bytes(cut(holder)));
  return frame;
}

Result<HoldRequest> decode_hold_request(ByteView frame) {
  if (frame.size() < kScopeBytes + 8) return bad("a hold of under 24 bytes");
  if (frame.size() > kScopeBytes + 8 + kTextBytesMax) return bad("a holder of over 1,024 bytes");
  const std::uint64_t lease_ms = load_le<std::uint64_t>(frame.data() + kScopeBytes);
  if (lease_ms > kLeaseMax_ms) return bad("a lease of over a day");
  return HoldRequest{scope_from(frame.data()), std::chrono::milliseconds(lease_ms),
                     std::string(as_text(frame.subspan(kScopeBytes + 8)))};
}

Bytes encode_messages(std::span<const Error> errors) {
  Bytes frame;
  for (const Error& error : errors) {
    append_text(frame, error.message);
  }
  return frame;
}

Result<std::vector<std::string>> decode_messages(std::size_t count, ByteView frame) {
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < count; ++i) {
    Result<std::string> message = take_text(frame);
    if (!message) return std::unexpected(message.error());
    messages.push_back(std::move(*message));
  }
  if (!frame.empty()) return corrupt("bytes behind the last error message");
  return messages;
}

Bytes encode_count(std::uint64_t count) {
  Bytes frame;
  append_le(frame, count);
  return frame;
}

Result<std::uint64_t> decode_count(ByteView frame) {
  if (frame.size() != 8) return corrupt("a count of not 8 bytes");
  return load_le<std::uint64_t>(frame.data());
}

Bytes encode_stats(const StoreStats& stats) {
  Bytes frame;
  for (const std::uint64_t figure :
       {stats.blocks, stats.bytes, stats.bytes_to_free, stats.budget_bytes, stats.evicted_blocks,
        stats.refused_late_puts, stats.unfinished_purges}) {
    append_le(frame, figure);
  }
  return frame;
}

Result<StoreStats> decode_stats(ByteView frame) {
  if (frame.size() != 56) return corrupt("stats of not 56 bytes");
  const auto figure = [&](std::size_t i) { return load_le<std::uint64_t>(frame.data() + 8 * i); };
  return StoreStats{.blocks = figure(0),
                    .bytes = figure(1),
                    .bytes_to_free = figure(2),
                    .budget_bytes = figure(3),
                    .evicted_blocks = figure(4),
                    .refused_late_puts = figure(5),
                    .unfinished_purges = figure(6)};
}

Bytes encode_scopes(std::span<const ScopeUsage> scopes) {
  Bytes frame;
  for (const ScopeUsage& usage : scopes) {
    const std::string_view description = cut(usage.description);
    append(frame, usage.scope.bytes);
    append_le(frame, usage.blocks);
    append_le(frame, usage.bytes);
    append_le(frame, static_cast<std::uint32_t>(description.size()));
    append_le(frame, static_cast<std::uint32_t>(usage.holders.size()));
    append(frame, as_bytes(description));
    for (const std::string& holder : usage.holders) append_text(frame, holder);
  }
  return frame;
}

Result<std::vector<ScopeUsage>> decode_scopes(const Head& head, ByteView frame) {
  std::vector<ScopeUsage> scopes;
  for (std::uint32_t i = 0; i < head.count; ++i) {
    if (frame.size() < kScopeEntryBytes) return corrupt("a scope is missing");
    const std::size_t text_bytes = load_le<std::uint32_t>(frame.data() + 32);
    const std::size_t holders = load_le<std::uint32_t>(frame.data() + 36);
    if (text_bytes > frame.size() - kScopeEntryBytes) return corrupt("a scope is cut short");
    ScopeUsage& usage = scopes.emplace_back(
        scope_from(frame.data()), std::string(as_text(frame.subspan(kScopeEntryBytes, text_bytes))),
        load_le<std::uint64_t>(frame.data() + 16), load_le<std::uint64_t>(frame.data() + 24));
    frame = frame.subspan(kScopeEntryBytes + text_bytes);
    for (std::size_t j = 0; j < holders; ++j) {
      Result<std::string> holder = take_text(frame);
      if (!holder) return std::unexpected(holder.error());
      usage.holders.push_back(std::move(*holder));
    }
  }
  if (!frame.empty()) return corrupt("bytes behind the last scope");
  return scopes;
}

}  // namespace newmoon::ipc
