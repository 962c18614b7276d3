#include "admin/store_codec.h"

#include <algorithm>
#include <span>
#include <utility>

namespace newmoon {
namespace {

constexpr std::size_t kTextBytesMax = 1024;  // of a description, holder or store error

std::string_view cut(std::string_view text) { return text.substr(0, kTextBytesMax); }

Result<ScopeId> to_scope_id(ByteView bytes, std::string_view key) {
  ScopeId scope;
  if (bytes.size() != scope.bytes.size()) {
    return fail(Code::kBadRequest, "'" + std::string(key) + "' is not of 16 bytes");
  }
  std::ranges::copy(bytes, scope.bytes.begin());
  return scope;
}

Bytes encode_usage(const ScopeUsage& usage) {
  std::vector<std::string_view> holders;
  for (const std::string& holder : usage.holders) {
    if (holders.size() < kPageHoldersMax) holders.push_back(cut(holder));
  }
  return MsgpackMapWriter(5)
      .put_bytes("scope", usage.scope.bytes)
      .put_text("description", cut(usage.description))
      .put_uint64("blocks", usage.blocks)
      .put_uint64("bytes", usage.bytes)
      .put_texts("holders", holders)
      .take();
}

Result<ScopeUsage> decode_usage(ByteView record) {
  Result<MsgpackMap> map = MsgpackMap::decode(record);
  if (!map) return std::unexpected(map.error());
  const ByteView scope = map->bytes("scope");
  ScopeUsage usage;
  usage.description = map->text("description");
  usage.blocks = map->uint64("blocks");
  usage.bytes = map->uint64("bytes");
  for (const std::string_view holder : map->texts("holders")) usage.holders.emplace_back(holder);
  if (!map->status()) return std::unexpected(map->status().error());
  const Result<ScopeId> id = to_scope_id(scope, "scope");
  if (!id) return std::unexpected(id.error());
  usage.scope = *id;
  return usage;
}

}  // namespace

// --- requests ---

Bytes encode_map(const StatsRequest&) { return MsgpackMapWriter(0).take(); }

Bytes encode_map(const ScopesRequest& request) {
  if (!request.after) return MsgpackMapWriter(0).take();
  return MsgpackMapWriter(1).put_bytes("after", request.after->bytes).take();
}

Bytes encode_map(const PurgeRequest& request) {
  const ScopeSelection& selection = request.selection;
  MsgpackMapWriter map((selection.scope ? 1 : 0) + (selection.name_space ? 1 : 0));
  if (selection.scope) map.put_bytes("scope", selection.scope->bytes);
  if (selection.name_space) map.put_text("namespace", *selection.name_space);
  return map.take();
}

Result<ScopesRequest> decode_scopes_request(MsgpackMap& map) {
  ScopesRequest request;
  if (!map.has("after")) return request;
  const ByteView after = map.bytes("after");
  if (!map.status()) return std::unexpected(map.status().error());
  const Result<ScopeId> scope = to_scope_id(after, "after");
  if (!scope) return std::unexpected(scope.error());
  request.after = *scope;
  return request;
}

Result<PurgeRequest> decode_purge_request(MsgpackMap& map) {
  PurgeRequest request;
  if (map.has("scope") == map.has("namespace")) {
    return fail(Code::kBadRequest, "a purge names either 'scope' or 'namespace'");
  }
  if (map.has("namespace")) {
    request.selection.name_space = map.text("namespace");
    if (!map.status()) return std::unexpected(map.status().error());
    return request;
  }
  const ByteView bytes = map.bytes("scope");
  if (!map.status()) return std::unexpected(map.status().error());
  const Result<ScopeId> scope = to_scope_id(bytes, "scope");
  if (!scope) return std::unexpected(scope.error());
  request.selection.scope = *scope;
  return request;
}

// --- answers ---

Bytes encode_map(const RankStats& stats) {
  std::uint32_t pairs = 1;
  visit_figures(stats, [&](std::string_view, std::uint64_t) { ++pairs; });
  MsgpackMapWriter map(pairs);
  visit_figures(stats,
                [&](std::string_view name, std::uint64_t value) { map.put_uint64(name, value); });
  return map.put_text("store_error", cut(stats.store_error)).take();
}

Result<RankStats> decode_rank_stats(MsgpackMap& map) {
  RankStats stats;
  visit_figures(stats,
                [&](std::string_view name, std::uint64_t& value) { value = map.uint64(name); });
  stats.store_error = map.text("store_error");
  if (!map.status()) return std::unexpected(map.status().error());
  return stats;
}

Bytes encode_map(const ScopesPage& page) {
  std::vector<Bytes> records;
  for (const ScopeUsage& usage : page.scopes) records.push_back(encode_usage(usage));
  return MsgpackMapWriter(2).put_boolean("more", page.more).put_bins("scopes", records).take();
}

Result<ScopesPage> decode_scopes_page(MsgpackMap& map) {
  ScopesPage page;
  page.more = map.boolean("more");
  for (const ByteView record : map.bins("scopes")) {
    Result<ScopeUsage> usage = decode_usage(record);
    if (!usage) return std::unexpected(usage.error());
    page.scopes.push_back(std::move(*usage));
  }
  if (!map.status()) return std::unexpected(map.status().error());
  return page;
}

Bytes encode_map(const PurgeAck& ack) {
  return MsgpackMapWriter(3)
      .put_uint64("scopes", ack.scopes)
      .put_uint64("blocks", ack.blocks)
      .put_uint64("bytes", ack.bytes)
      .take();
}

Result<PurgeAck> decode_purge_ack(MsgpackMap& map) {
  const PurgeAck ack{
      .scopes = map.uint64("scopes"), .blocks = map.uint64("blocks"), .bytes = map.uint64("bytes")};
  if (!map.status()) return std::unexpected(map.status().error());
  return ack;
}

}  // namespace newmoon
