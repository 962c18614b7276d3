// What an IpcStore and a StoreServer say to each other: multipart messages, all
// integers little-endian; byte tables in docs/formats.md, "Store over ipc". Only
// encoding and checking; no sockets. Every number that a peer sent is checked against
// the bytes that came with it before it is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/kv_store.h"

namespace newmoon::ipc {

inline constexpr std::uint32_t kMagic = 0x53534d4e;  // bytes "NMSS"
inline constexpr std::uint8_t kVersion = 2;

// Limits of one message; the client splits larger batches.
inline constexpr std::size_t kItemsMax = 1024;
inline constexpr std::size_t kPayloadBytesMax = std::size_t{64} << 20;
inline constexpr std::size_t kBlocksMax = 1'000'000;
inline constexpr std::size_t kShardsMax = 4096;
inline constexpr std::size_t kHitsMax = 4'000'000;  // blocks x shards of a lookup
inline constexpr std::size_t kTextBytesMax = 1024;
inline constexpr std::uint64_t kLeaseMax_ms = 86'400'000;  // of a hold: a day

enum class Op : std::uint8_t {
  kPut = 1,
  kGet = 2,
  kHitPrefix = 3,
  kPurgeScope = 4,
  kDescribeScope = 5,
  kRemoveAll = 6,
  kStats = 7,
  kListScopes = 8,
  kHoldScope = 9,
  kRemove = 10,
  kPing = 11,
};

// Frame 0 of a request and of a reply.
struct Head {
  static constexpr std::size_t kBytes = 24;
  static constexpr std::uint8_t kReply = 0x80;  // in the op byte
  static constexpr std::uint16_t kForGood = 1;  // flag of a purge request

  Op op = Op::kStats;
  bool reply = false;
  std::uint16_t flags = 0;  // of a reply: 0 or the error of the whole request, to_wire()
  std::uint64_t request_id = 0;
  std::uint32_t count = 0;         // items, blocks or scopes
  std::uint32_t second_count = 0;  // shards
  friend bool operator==(const Head&, const Head&) = default;
};

std::array<std::uint8_t, Head::kBytes> encode_head(const Head& head);
// kBadRequest: not of this version, or an op that it does not know.
Result<Head> decode_head(ByteView frame);

// 0: success.
std::uint8_t to_wire(const Status& status);
Status status_from_wire(std::uint8_t code, std::string message);

// --- requests: frame 1 -------------------------------------------------------------

// put: PutItem::not_after by CLOCK_MONOTONIC, in ns, which is one for the processes of a machine;
// then one ValueHeader an item. A payload frame an item follows.
inline constexpr std::size_t kPutHeadBytes = 8;
inline constexpr std::size_t kPutEntryBytes = sizeof(ValueHeader);
// The key that a header names. kBadRequest: it names none.
Result<Key> key_of(const ValueHeader& header);

// get: one an item. remove: one, of 0 payload bytes.
struct GetEntry {
  static constexpr std::size_t kBytes = 72;
  Key key;
  std::uint64_t payload_bytes = 0;
};
void encode_get_entry(const GetEntry& entry, std::uint8_t* to);
Result<GetEntry> decode_get_entry(const std::uint8_t* from);

struct HitRequest {
  ScopeId scope;
  std::vector<Shard> shards;
  std::vector<BlockHash> blocks;
};
Bytes encode_hit_request(const ScopeId& scope, std::span<const Shard> shards,
                         std::span<const BlockHash> blocks);
Result<HitRequest> decode_hit_request(const Head& head, ByteView frame);

// purge and describe: the scope, and the description.
struct ScopeRequest {
  ScopeId scope;
  std::string text;
};
Bytes encode_scope_request(const ScopeId& scope, std::string_view text);
Result<ScopeRequest> decode_scope_request(ByteView frame);

// hold: the scope, the lease and the holder.
struct HoldRequest {
  ScopeId scope;
  Duration lease{};
  std::string holder;
};
Bytes encode_hold_request(const ScopeId& scope, std::string_view holder, Duration lease);
Result<HoldRequest> decode_hold_request(ByteView frame);

// --- replies -------------------------------------------------------------------------

// The messages of those statuses that are errors, in order.
Bytes encode_messages(std::span<const Error> errors);
// Exactly `count` of them. kCorrupt: other bytes.
Result<std::vector<std::string>> decode_messages(std::size_t count, ByteView frame);

// get: one an item, then the payloads of the successes, a frame each.
inline constexpr std::size_t kGetResultBytes = 8 + sizeof(ValueHeader);

Bytes encode_count(std::uint64_t count);
Result<std::uint64_t> decode_count(ByteView frame);
Bytes encode_stats(const StoreStats& stats);
Result<StoreStats> decode_stats(ByteView frame);
Bytes encode_scopes(std::span<const ScopeUsage> scopes);
Result<std::vector<ScopeUsage>> decode_scopes(const Head& head, ByteView frame);

}  // namespace newmoon::ipc
