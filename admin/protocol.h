// Wire format of the lookup/admin channel between a scheduler and the ranks of its
// engine (docs/formats.md has the byte tables). Three generations are answered:
//
//   vLLM 0.32   "lookup" | u32 BE num_tokens | u16 BE hash_len (2 bytes) | raw hashes [| ignored]
//   the seed's  "lookup" | u32 BE token_len  | msgpack list[str hex], in 1..n frames
//   both        reply: u32 BE hit length in tokens
//   both        "reset" -> 0x01 ok, 0x00 error;  anything unknown or bad -> 0x00
//   ours        tag | u64 BE request id | msgpack map
//               -> 0x01 | request id | map       or  0x00 | request id | {code, message}
//
// Everything here is a pure function of its arguments: no sockets, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "admin/store_commands.h"
#include "base/result.h"
#include "base/transport.h"
#include "hash/block_hash.h"
#include "hash/scope.h"

namespace newmoon {

// The seed's constants, under the seed's names.
inline constexpr std::string_view LOOKUP_MSG = "lookup";
inline constexpr std::string_view RESET_MSG = "reset";
inline constexpr std::string_view RESP_OK{"\x01", 1};
inline constexpr std::string_view RESP_ERR{"\x00", 1};

// Our own commands.
inline constexpr std::string_view SCOPED_LOOKUP_MSG = "nm.lookup";
inline constexpr std::string_view FENCE_MSG = "nm.fence";
inline constexpr std::string_view SCOPED_RESET_MSG = "nm.reset";
inline constexpr std::string_view PING_MSG = "nm.ping";
inline constexpr std::string_view DRAIN_MSG = "nm.drain";
inline constexpr std::string_view STATS_MSG = "nm.stats";
inline constexpr std::string_view SCOPES_MSG = "nm.scopes";
inline constexpr std::string_view PURGE_MSG = "nm.purge";
inline constexpr std::string_view WEIGHTS_WRITTEN_MSG = "nm.weights_written";

struct ProtocolLimits {
  std::size_t message_bytes_max = std::size_t{64} << 20;  // all frames together
  std::size_t hashes_max = 1'000'000;
  std::size_t frames_max = 1024;
};

// How long a prefix of the request's blocks is there for every rank.
struct LookupRequest {
  // nullopt: a foreign peer asked, which knows no scopes; such an answer is not
  // covered by the contract (rule EXPLICIT).
  std::optional<ScopeId> scope;
  Epoch epoch = 0;  // 0 for a foreign peer
  std::uint32_t num_tokens = 0;
  std::vector<BlockHash> block_hashes;
};

enum class ResetMode : std::uint8_t {
  kFence,      // raise the floor, drop the jobs below it: O(jobs), no store access
  kRemoveAll,  // upstream's: drain, remove everything, re-read the count (rank 0 removes)
};
std::string_view to_string(ResetMode mode);  // "fence", "remove_all"

struct ResetRequest {
  Epoch epoch = 0;  // the epoch after the fence; 0 from a foreign peer: "all you have seen"
  ResetMode mode = ResetMode::kFence;
  bool remove = false;  // kRemoveAll: this rank also removes (after all ranks have drained)
};

// A rank's answer to fence and reset.
struct FenceAck {
  Epoch floor = 0;  // jobs below it are refused from now on
  std::uint64_t dropped_loads = 0;
  std::uint64_t dropped_saves = 0;
  std::uint64_t weight_writes = 0;  // rule BIND
};
struct ResetAck {
  FenceAck fence;
  std::uint64_t removed = 0;    // kRemoveAll with `remove`
  std::uint64_t remaining = 0;  // keys counted after it
};

struct FenceRequest {
  Epoch epoch = 0;
};
struct PingRequest {};
struct DrainRequest {};
// An operator's word that the rank's weights are to count as written: rule BIND then ends
// every epoch up to now.
struct WeightsWrittenRequest {};

// One decoded request. `foreign`: came in a vLLM form, so the reply takes that form.
struct Request {
  std::variant<LookupRequest, FenceRequest, ResetRequest, PingRequest, DrainRequest, StatsRequest,
               ScopesRequest, PurgeRequest, WeightsWrittenRequest>
      body;
  std::uint64_t request_id = 0;
  bool foreign = false;
};

// Never throws, whatever the bytes. kBadRequest says which frame is wrong and how.
Result<Request> decode_request(const Frames& frames, const ProtocolLimits& limits);
// The request id of a message in our own form, even if the rest is bad, so that an
// error can be matched; nullopt for a foreign or hopeless message.
std::optional<std::uint64_t> peek_request_id(const Frames& frames);

// Client side, our form. Hashes behind the first one of another size are left out: the
// message has one size, and a shorter question is answered rightly too.
Frames encode_request(std::uint64_t request_id, const Request& request);
// Client side, the forms of vLLM, for a foreign server.
enum class ForeignDialect : std::uint8_t { kVllm, kSeed };
Frames encode_foreign_lookup(ForeignDialect dialect, const LookupRequest& request);
Frames encode_foreign_reset();

// Hit tokens for a lookup, FenceAck for fence, ping, drain and weights written, ResetAck for
// a reset, and what stats, scopes and purge answer.
using ReplyBody = std::variant<std::uint32_t, FenceAck, ResetAck, RankStats, ScopesPage, PurgeAck>;
// In the form of the request. REQUIRES: `body` is of the request's kind.
Frames encode_reply(const Request& request, const ReplyBody& body);
// An error: in our form if there is a request id, otherwise RESP_ERR alone.
Frames encode_error(std::optional<std::uint64_t> request_id, const Error& error);

struct Reply {
  std::uint64_t request_id = 0;
  Result<ReplyBody> body;
};
// `request_index`: of the request's body, Request::body.index(); says what the map is
// read as. kBadRequest: no reply of ours.
Result<Reply> decode_reply(const Frames& frames, std::size_t request_index);
std::optional<std::uint64_t> peek_reply_id(const Frames& frames);
Result<std::uint32_t> decode_foreign_lookup_reply(const Frames& frames);
Result<bool> decode_foreign_reset_reply(const Frames& frames);

// Tokens of a hit of `hit_blocks` full blocks for a request of num_tokens tokens. A
// hit that covers all tokens is cut by one block: the last token must be computed.
std::uint32_t hit_length_tokens(std::size_t hit_blocks, int block_size, std::uint32_t num_tokens);

}  // namespace newmoon
