// The maps of the admin commands stats, scopes and purge (docs/formats.md).
#pragma once

#include "admin/msgpack_map.h"
#include "admin/store_commands.h"
#include "base/bytes.h"
#include "base/result.h"

namespace newmoon {

// Scopes of a page, and holders that are named of one; further holders are left out.
inline constexpr std::size_t kPageScopesMax = 256;
inline constexpr std::size_t kPageHoldersMax = 64;

Bytes encode_map(const StatsRequest& request);
Bytes encode_map(const ScopesRequest& request);
Bytes encode_map(const PurgeRequest& request);
Result<ScopesRequest> decode_scopes_request(MsgpackMap& map);
// kBadRequest: also if it names both a scope and a namespace, or neither.
Result<PurgeRequest> decode_purge_request(MsgpackMap& map);

Bytes encode_map(const RankStats& stats);
Bytes encode_map(const ScopesPage& page);
Bytes encode_map(const PurgeAck& ack);
Result<RankStats> decode_rank_stats(MsgpackMap& map);
Result<ScopesPage> decode_scopes_page(MsgpackMap& map);
Result<PurgeAck> decode_purge_ack(MsgpackMap& map);

}  // namespace newmoon
