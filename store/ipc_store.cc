#include "store/ipc_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/ipc_path.h"
#include "base/shell_command.h"
#include "store/other_length.h"
#include "store/put_check.h"

namespace newmoon {
namespace {

using ipc::Head;
using ipc::Op;

// Kept open for the next call; what comes on top is closed after its call.
constexpr std::size_t kIdleConnectionsMax = 8;
// Payload of one message: large enough that the round trip is no cost, small enough
// not to keep a worker of the server for long.
constexpr std::size_t kBatchBytes = 4 << 20;
// A ping has nothing to carry: one that takes longer says enough.
constexpr Duration kPingTimeout = std::chrono::seconds(2);
// What the lookup/admin channel of a rank answers to what it does not know (docs/formats.md).
constexpr std::uint8_t kRankRefusal = 0;

}  // namespace

Result<std::unique_ptr<IpcStore>> IpcStore::open(const std::string& endpoint, Clock& clock,
                                                 const Options& options) {
  const Result<std::string> path = parse_ipc_endpoint(endpoint);
  if (!path) return std::unexpected(path.error());
  return std::unique_ptr<IpcStore>(new IpcStore(endpoint, clock, options));
}

IpcStore::IpcStore(std::string endpoint, Clock& clock, const Options& options)
    : endpoint_(std::move(endpoint)), clock_(clock), options_(options) {}

IpcStore::~IpcStore() = default;

// --- one request ---------------------------------------------------------------------

ByteView IpcStore::Reply::frame(std::size_t index) const {
  return index < body.size() ? body[index].bytes() : ByteView();
}

std::unexpected<Error> IpcStore::garbage(const std::string& what) const {
  return fail(Code::kUnavailable,
              "the server at " + endpoint_ + " is no store server of this version: " + what);
}

std::unexpected<Error> IpcStore::a_rank() const {
  return fail(Code::kUnavailable,
              endpoint_ + " is the socket of an engine, not of a store: `" +
                  shell_command({"newmoon", "ctl", "--endpoint", endpoint_, "scopes"}) +
                  "` asks it");
}

Result<IpcStore::Reply> IpcStore::call(Op op, ByteView body) {
  ZmqFrames frames;
  frames.emplace_back(body);
  return call(Head{.op = op}, std::move(frames), deadline());
}

// A connection is used again only after an answer that was understood.
Result<IpcStore::Reply> IpcStore::call(Head head, ZmqFrames body, Time deadline) {
  head.request_id = next_request_id_++;
  Result<ZmqSocket> connection = take_connection(deadline);
  if (!connection) return std::unexpected(connection.error());
  Result<Reply> reply = exchange(*connection, head, std::move(body), deadline);
  if (!reply) return reply;
  return_connection(std::move(*connection));
  const std::uint16_t code = reply->head.flags;
  if (code == 0) return reply;
  const Result<std::vector<std::string>> messages = ipc::decode_messages(1, reply->frame(0));
  const std::string message = messages ? messages->front() : "no message";
  return std::unexpected(
      ipc::status_from_wire(static_cast<std::uint8_t>(std::min<unsigned>(code, 255)), message)
          .error());
}

Result<IpcStore::Reply> IpcStore::exchange(ZmqSocket& connection, const Head& head, ZmqFrames body,
                                           Time deadline) {
  ZmqFrames frames;
  frames.reserve(body.size() + 1);
  frames.emplace_back(ByteView(ipc::encode_head(head)));
  for (ZmqFrame& frame : body) frames.push_back(std::move(frame));
  if (!connection.send(std::move(frames))) {
    return fail(Code::kUnavailable, "the store server at " + endpoint_ + " is gone");
  }
  return await_reply(connection, head, deadline);
}

Result<IpcStore::Reply> IpcStore::await_reply(ZmqSocket& connection, const Head& head,
                                              Time deadline) {
  bool lost = false;
  while (true) {
    while (std::optional<ZmqSocket::Received> received = connection.receive()) {
      if (received->frames.empty()) return garbage("an answer that did not fit into memory");
      const ByteView first = received->frames[0].bytes();
      if (first.size() == 1 && first[0] == kRankRefusal) return a_rank();
      const Result<Head> reply = ipc::decode_head(first);
      if (!reply) return garbage(reply.error().message);
      if (!reply->reply || received->cut) return garbage("an answer that is none");
      if (reply->request_id != head.request_id) continue;  // of an earlier request
      return check_reply(head, *reply, std::move(received->frames));
    }
    // What came before the connection broke has been read by now.
    if (lost) {
      return fail(Code::kUnavailable, "the store server at " + endpoint_ + " is gone");
    }
    const Duration left = deadline - clock_.now();
    if (left <= Duration::zero()) {
      return fail(Code::kDeadline, "the store server at " + endpoint_ + " did not answer in time");
    }
    lost = connection.wait(left) == ZmqSocket::Wait::kLost;
  }
}

Result<IpcStore::Reply> IpcStore::check_reply(const Head& request, const Head& head,
                                              ZmqFrames frames) {
  if (head.op != request.op) return garbage("an answer to another operation");
  frames.erase(frames.begin());
  return Reply{head, std::move(frames)};
}

Result<ZmqSocket> IpcStore::take_connection(Time deadline) {
  while (true) {
    std::optional<ZmqSocket> idle;
    {
      MutexLock lock(mutex_);
      if (idle_.empty()) break;
      idle.emplace(std::move(idle_.back()));
      idle_.pop_back();
    }
    if (!idle->lost()) return std::move(*idle);
  }
  const ZmqSocket::Limits limits{.frame_bytes_max = ipc::kPayloadBytesMax,
                                 .frames_max = ipc::kItemsMax + 8};
  return ZmqSocket::connect_dealer(context_, endpoint_, limits, clock_, deadline);
}

void IpcStore::return_connection(ZmqSocket connection) {
  MutexLock lock(mutex_);
  if (idle_.size() < kIdleConnectionsMax) idle_.push_back(std::move(connection));
}

// --- put -----------------------------------------------------------------------------

std::vector<Status> IpcStore::put(std::span<const PutItem> items) {
  std::vector<Status> statuses(items.size());
  std::vector<std::size_t> batch;  // positions in `items`
  std::size_t batch_bytes = 0;
  Status sent;
  const Time until = deadline();
  const auto flush = [&] {
    if (sent && !batch.empty()) sent = put_batch(items, batch, statuses, until);
    if (!sent) {
      for (const std::size_t position : batch) statuses[position] = sent;
    }
    batch.clear();
    batch_bytes = 0;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t bytes = items[i].header.payload_bytes;
    statuses[i] = check_put(items[i]);
    if (statuses[i] && bytes > ipc::kPayloadBytesMax) {
      statuses[i] = fail(Code::kBadRequest, "put: a value of over 64 MiB");
    }
    if (!statuses[i]) continue;
    if (batch.size() == ipc::kItemsMax || batch_bytes + bytes > kBatchBytes) flush();
    batch.push_back(i);
    batch_bytes += bytes;
  }
  flush();
  return statuses;
}

Status IpcStore::put_batch(std::span<const PutItem> items, std::span<const std::size_t> positions,
                           std::vector<Status>& statuses, Time deadline) {
  ZmqFrames body;
  body.emplace_back(ipc::kPutHeadBytes + positions.size() * ipc::kPutEntryBytes);
  std::uint8_t* to = body[0].mutable_bytes().data();
  store_le<std::int64_t>(to, deadline.count());
  to += ipc::kPutHeadBytes;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const PutItem& item = items[positions[i]];
    ZmqFrame& payload = body.emplace_back(item.header.payload_bytes);
    ValueHeader header = item.header;
    const std::uint64_t checksum = gather(item.payload, payload.mutable_bytes(), item.checksum);
    if (item.checksum) set_checksum(header, checksum);
    std::memcpy(to + i * ipc::kPutEntryBytes, &header, sizeof header);
  }
  const Head head{.op = Op::kPut, .count = static_cast<std::uint32_t>(positions.size())};
  const Result<Reply> reply = call(head, std::move(body), deadline);
  if (!reply) return std::unexpected(reply.error());
  const ByteView codes = reply->frame(0);
  if (codes.size() != positions.size()) return garbage("a put of other results than items");
  const auto errors = static_cast<std::size_t>(codes.size() - std::ranges::count(codes, 0));
  Result<std::vector<std::string>> messages = ipc::decode_messages(errors, reply->frame(1));
  if (!messages) return garbage(messages.error().message);
  std::size_t next_message = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (codes[i] == 0) continue;
    statuses[positions[i]] =
        ipc::status_from_wire(codes[i], std::move((*messages)[next_message++]));
  }
  return {};
}

// --- get -----------------------------------------------------------------------------

std::vector<Result<GetValue>> IpcStore::get(std::span<const GetItem> items) {
  std::vector<Result<GetValue>> values;
  values.reserve(items.size());
  const Time until = deadline();
  while (values.size() < items.size()) {
    std::span<const GetItem> batch = items.subspan(values.size());
    std::size_t count = 0;
    std::size_t bytes = 0;
    while (count < batch.size() && count < ipc::kItemsMax) {
      bytes += total_bytes(batch[count].payload);
      if (count > 0 && bytes > kBatchBytes) break;
      ++count;
    }
    batch = batch.first(count);
    if (const Status read = get_batch(batch, values, until); !read) {
      values.resize(items.size(), failed_get(read.error()));
    }
  }
  return values;
}

// Appends a result an item, or fails as a whole and appends none.
Status IpcStore::get_batch(std::span<const GetItem> items, std::vector<Result<GetValue>>& values,
                           Time deadline) {
  ZmqFrames body;
  body.emplace_back(items.size() * ipc::GetEntry::kBytes);
  std::uint8_t* to = body[0].mutable_bytes().data();
  for (const GetItem& item : items) {
    ipc::encode_get_entry({item.key, total_bytes(item.payload)}, to);
    to += ipc::GetEntry::kBytes;
  }
  const Head head{.op = Op::kGet, .count = static_cast<std::uint32_t>(items.size())};
  const Result<Reply> reply = call(head, std::move(body), deadline);
  if (!reply) return std::unexpected(reply.error());
  const ByteView results = reply->frame(0);
  if (results.size() != items.size() * ipc::kGetResultBytes) {
    return garbage("a get of other results than items");
  }
  std::size_t errors = 0;
  std::size_t next_frame = 2;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (results[i * ipc::kGetResultBytes] != 0) {
      ++errors;
    } else if (next_frame >= reply->body.size() ||
               reply->frame(next_frame++).size() != total_bytes(items[i].payload)) {
      return garbage("a payload of another length than asked for");
    }
  }
  Result<std::vector<std::string>> messages = ipc::decode_messages(errors, reply->frame(1));
  if (!messages) return garbage(messages.error().message);
  std::size_t next_message = 0;
  next_frame = 2;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint8_t* result = results.data() + i * ipc::kGetResultBytes;
    if (*result != 0) {
      values.push_back(std::unexpected(
          ipc::status_from_wire(*result, std::move((*messages)[next_message++])).error()));
      continue;
    }
    GetValue value;
    std::memcpy(&value.header, result + 8, sizeof(ValueHeader));
    value.payload_checksum =
        scatter(reply->frame(next_frame++), items[i].payload, items[i].checksum);
    values.push_back(value);
  }
  return {};
}

// --- the others ------------------------------------------------------------------------

Result<std::size_t> IpcStore::hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                         std::span<const BlockHash> blocks) {
  if (blocks.size() > ipc::kBlocksMax || shards.size() > ipc::kShardsMax ||
      blocks.size() * shards.size() > ipc::kHitsMax) {
    return fail(Code::kBadRequest,
                "lookup of over 1,000,000 blocks, 4,096 shards or 4,000,000 of both");
  }
  const Head head{.op = Op::kHitPrefix,
                  .count = static_cast<std::uint32_t>(blocks.size()),
                  .second_count = static_cast<std::uint32_t>(shards.size())};
  ZmqFrames body;
  body.emplace_back(ByteView(ipc::encode_hit_request(scope, shards, blocks)));
  const Result<Reply> reply = call(head, std::move(body), deadline());
  if (!reply) return std::unexpected(reply.error());
  const Result<std::uint64_t> hits = ipc::decode_count(reply->frame(0));
  if (!hits) return garbage(hits.error().message);
  if (*hits > blocks.size()) return garbage("more hits than blocks");
  return *hits;
}

Status IpcStore::remove(const Key& key) {
  Bytes entry(ipc::GetEntry::kBytes);
  ipc::encode_get_entry({key, 0}, entry.data());
  const Result<Reply> reply = call(Op::kRemove, entry);
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Status IpcStore::ping() {
  const Time until = clock_.now() + std::min(options_.timeout, kPingTimeout);
  const Result<Reply> reply = call(Head{.op = Op::kPing}, {}, until);
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Status IpcStore::purge_scope(const ScopeId& scope, bool for_good) {
  const Head head{.op = Op::kPurgeScope, .flags = for_good ? Head::kForGood : std::uint16_t{0}};
  ZmqFrames body;
  body.emplace_back(ByteView(ipc::encode_scope_request(scope, "")));
  const Result<Reply> reply = call(head, std::move(body), deadline());
  if (!reply) return std::unexpected(reply.error());
  return {};
}

void IpcStore::describe_scope(const ScopeId& scope, const std::string& description) {
  (void)call(Op::kDescribeScope, ipc::encode_scope_request(scope, description));
}

Status IpcStore::hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) {
  const Result<Reply> reply = call(Op::kHoldScope, ipc::encode_hold_request(scope, holder, lease));
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Result<std::uint64_t> IpcStore::remove_all() {
  const Result<Reply> reply = call(Op::kRemoveAll, {});
  if (!reply) return std::unexpected(reply.error());
  const Result<std::uint64_t> removed = ipc::decode_count(reply->frame(0));
  if (!removed) return garbage(removed.error().message);
  return *removed;
}

Result<StoreStats> IpcStore::stats() {
  const Result<Reply> reply = call(Op::kStats, {});
  if (!reply) return std::unexpected(reply.error());
  Result<StoreStats> stats = ipc::decode_stats(reply->frame(0));
  if (!stats) return garbage(stats.error().message);
  return stats;
}

Result<std::vector<ScopeUsage>> IpcStore::list_scopes() {
  const Result<Reply> reply = call(Op::kListScopes, {});
  if (!reply) return std::unexpected(reply.error());
  Result<std::vector<ScopeUsage>> scopes = ipc::decode_scopes(reply->head, reply->frame(0));
  if (!scopes) return garbage(scopes.error().message);
  return scopes;
}

}  // namespace newmoon
