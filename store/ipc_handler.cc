#include "store/ipc_handler.h"

#include <cstring>
#include <string>
#include <utility>

namespace newmoon::ipc {
namespace {

std::unexpected<Error> bad(const std::string& what) {
  return fail(Code::kBadRequest, "store ipc: " + what);
}

ZmqFrames one_frame(ByteView bytes) {
  ZmqFrames frames;
  frames.emplace_back(bytes);
  return frames;
}

Head reply_head(const Head& request) {
  return {.op = request.op, .reply = true, .request_id = request.request_id};
}

// Frame 1 of a put or get, behind `head_bytes`: `count` entries of `entry_bytes`.
Result<ByteView> entries_of(const Head& head, std::span<const ZmqFrame> body,
                            std::size_t entry_bytes, std::size_t head_bytes = 0) {
  if (head.count > kItemsMax) return bad("a batch of over 1,024 items");
  if (body.empty() || body[0].bytes().size() != head_bytes + head.count * entry_bytes) {
    return bad("a batch of another size than its count");
  }
  return body[0].bytes().subspan(head_bytes);
}

struct PutBatch {
  std::vector<ConstFragment> payloads;
  std::vector<PutItem> items;
};

Result<PutBatch> decode_put(const Head& head, std::span<const ZmqFrame> body) {
  const Result<ByteView> entries = entries_of(head, body, kPutEntryBytes, kPutHeadBytes);
  if (!entries) return std::unexpected(entries.error());
  if (body.size() != 1 + std::size_t{head.count}) return bad("a put of other frames than items");
  const Time not_after(load_le<std::int64_t>(body[0].bytes().data()));
  PutBatch batch;
  batch.payloads.reserve(head.count);
  batch.items.reserve(head.count);
  for (std::size_t i = 0; i < head.count; ++i) {
    ValueHeader header;
    std::memcpy(&header, entries->data() + i * kPutEntryBytes, sizeof header);
    const Result<Key> key = key_of(header);
    if (!key) return std::unexpected(key.error());
    batch.payloads.push_back(body[1 + i].bytes());
    batch.items.push_back({.key = *key,
                           .header = header,
                           .payload = {&batch.payloads.back(), 1},
                           .checksum = false,
                           .not_after = not_after});
  }
  return batch;
}

struct GetBatch {
  std::vector<ZmqFrame> payloads;
  std::vector<Fragment> fragments;
  std::vector<GetItem> items;
};

Result<GetBatch> decode_get(const Head& head, std::span<const ZmqFrame> body) {
  const Result<ByteView> entries = entries_of(head, body, GetEntry::kBytes);
  if (!entries) return std::unexpected(entries.error());
  if (body.size() != 1) return bad("a get of more than one frame");
  std::vector<GetEntry> wanted;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < head.count; ++i) {
    const Result<GetEntry> entry = decode_get_entry(entries->data() + i * GetEntry::kBytes);
    if (!entry) return std::unexpected(entry.error());
    if (entry->payload_bytes > kPayloadBytesMax - total) return bad("a get of over 64 MiB");
    total += entry->payload_bytes;
    wanted.push_back(*entry);
  }
  GetBatch batch;
  batch.payloads.reserve(wanted.size());
  batch.fragments.reserve(wanted.size());
  for (const GetEntry& entry : wanted) {
    batch.payloads.emplace_back(entry.payload_bytes);
    batch.fragments.push_back(batch.payloads.back().mutable_bytes());
    batch.items.push_back({entry.key, {&batch.fragments.back(), 1}, false});
  }
  return batch;
}

}  // namespace

ZmqFrames Handler::refuse(const Head& head, const Error& error) {
  Head reply = reply_head(head);
  reply.flags = to_wire(std::unexpected(error));
  ZmqFrames frames = one_frame(encode_head(reply));
  frames.emplace_back(ByteView(encode_messages({&error, 1})));
  return frames;
}

ZmqFrames Handler::answer(const Head& head, std::span<const ZmqFrame> body) {
  Head reply = reply_head(head);
  Result<ZmqFrames> answered = dispatch(head, body, reply);
  if (!answered) return refuse(head, answered.error());
  ZmqFrames frames = one_frame(encode_head(reply));
  for (ZmqFrame& frame : *answered) frames.push_back(std::move(frame));
  return frames;
}

Result<ZmqFrames> Handler::dispatch(const Head& head, std::span<const ZmqFrame> body, Head& reply) {
  if (head.op == Op::kPut) return put(head, body);
  if (head.op == Op::kGet) return get(head, body);
  if (body.size() > 1) return bad("more frames than the operation has");
  const ByteView frame = body.empty() ? ByteView() : body[0].bytes();
  switch (head.op) {
    case Op::kHitPrefix:
      return hit_prefix(head, frame);
    case Op::kPurgeScope:
      return purge_scope(head, frame);
    case Op::kDescribeScope:
      return describe_scope(frame);
    case Op::kHoldScope:
      return hold_scope(frame);
    case Op::kRemoveAll:
      return remove_all();
    case Op::kStats:
      return stats();
    case Op::kListScopes:
      return list_scopes(reply);
    case Op::kRemove:
      return remove(frame);
    case Op::kPing:
      return ping();
    case Op::kPut:
    case Op::kGet:
      break;  // above
  }
  return bad("an unknown operation");
}

Result<ZmqFrames> Handler::put(const Head& head, std::span<const ZmqFrame> body) {
  const Result<PutBatch> batch = decode_put(head, body);
  if (!batch) return std::unexpected(batch.error());
  Bytes codes;
  std::vector<Error> errors;
  for (const Status& status : store_.put(batch->items)) {
    codes.push_back(to_wire(status));
    if (!status) errors.push_back(status.error());
  }
  ZmqFrames frames = one_frame(codes);
  frames.emplace_back(ByteView(encode_messages(errors)));
  return frames;
}

Result<ZmqFrames> Handler::get(const Head& head, std::span<const ZmqFrame> body) {
  Result<GetBatch> batch = decode_get(head, body);
  if (!batch) return std::unexpected(batch.error());
  const std::vector<Result<GetValue>> values = store_.get(batch->items);
  Bytes results(values.size() * kGetResultBytes);
  std::vector<Error> errors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint8_t* to = results.data() + i * kGetResultBytes;
    if (values[i]) {
      std::memcpy(to + 8, &values[i]->header, sizeof(ValueHeader));
    } else {
      *to = to_wire(std::unexpected(values[i].error()));
      errors.push_back(values[i].error());
    }
  }
  ZmqFrames frames = one_frame(results);
  frames.emplace_back(ByteView(encode_messages(errors)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i]) frames.push_back(std::move(batch->payloads[i]));
  }
  return frames;
}

Result<ZmqFrames> Handler::hit_prefix(const Head& head, ByteView body) {
  const Result<HitRequest> request = decode_hit_request(head, body);
  if (!request) return std::unexpected(request.error());
  const Result<std::size_t> hits =
      store_.hit_prefix(request->scope, request->shards, request->blocks);
  if (!hits) return std::unexpected(hits.error());
  return one_frame(encode_count(*hits));
}

Result<ZmqFrames> Handler::remove(ByteView body) {
  if (body.size() != GetEntry::kBytes) return bad("a remove of another size than one entry");
  const Result<GetEntry> entry = decode_get_entry(body.data());
  if (!entry) return std::unexpected(entry.error());
  const Status removed = store_.remove(entry->key);
  if (!removed) return std::unexpected(removed.error());
  return ZmqFrames();
}

Result<ZmqFrames> Handler::purge_scope(const Head& head, ByteView body) {
  const Result<ScopeRequest> request = decode_scope_request(body);
  if (!request) return std::unexpected(request.error());
  const Status purged = store_.purge_scope(request->scope, (head.flags & Head::kForGood) != 0);
  if (!purged) return std::unexpected(purged.error());
  return ZmqFrames();
}

Result<ZmqFrames> Handler::describe_scope(ByteView body) {
  const Result<ScopeRequest> request = decode_scope_request(body);
  if (!request) return std::unexpected(request.error());
  store_.describe_scope(request->scope, request->text);
  return ZmqFrames();
}

Result<ZmqFrames> Handler::hold_scope(ByteView body) {
  const Result<HoldRequest> request = decode_hold_request(body);
  if (!request) return std::unexpected(request.error());
  const Status held = store_.hold_scope(request->scope, request->holder, request->lease);
  if (!held) return std::unexpected(held.error());
  return ZmqFrames();
}

Result<ZmqFrames> Handler::remove_all() {
  const Result<std::uint64_t> removed = store_.remove_all();
  if (!removed) return std::unexpected(removed.error());
  return one_frame(encode_count(*removed));
}

Result<ZmqFrames> Handler::ping() {
  const Status alive = store_.ping();
  if (!alive) return std::unexpected(alive.error());
  return ZmqFrames();
}

Result<ZmqFrames> Handler::stats() {
  const Result<StoreStats> stats = store_.stats();
  if (!stats) return std::unexpected(stats.error());
  return one_frame(encode_stats(*stats));
}

Result<ZmqFrames> Handler::list_scopes(Head& reply) {
  const Result<std::vector<ScopeUsage>> scopes = store_.list_scopes();
  if (!scopes) return std::unexpected(scopes.error());
  const Bytes encoded = encode_scopes(*scopes);
  if (encoded.size() > kPayloadBytesMax) {
    return fail(Code::kBusy, "store server: too many scopes for one list");
  }
  reply.count = static_cast<std::uint32_t>(scopes->size());
  return one_frame(encoded);
}

}  // namespace newmoon::ipc
