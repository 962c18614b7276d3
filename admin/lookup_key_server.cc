#include "admin/lookup_key_server.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"

namespace newmoon {
namespace {

constexpr std::string_view kComponent = "lookup-server";

Frames encode_failure(const Request& request, const Error& error) {
  log(LogLevel::kWarning, kComponent, to_string(error));
  return encode_error(request.foreign ? std::nullopt : std::optional(request.request_id), error);
}

// To a foreign peer a lookup that failed is a hit of nothing, as upstream has it.
Frames encode_failed_lookup(const Request& request, const Error& error) {
  return request.foreign ? encode_reply(request, 0U) : encode_failure(request, error);
}

void log_reset(const Request& request, const ResetRequest& reset) {
  log(LogLevel::kDebug, kComponent,
      (request.foreign ? "foreign reset: " : "reset: ") + std::string(to_string(reset.mode)) +
          ", epoch " + std::to_string(reset.epoch) +
          ", remove=" + (reset.remove ? "true" : "false"));
}

// A request with its share of a bounded queue, which goes back at the latest when nobody holds
// it any more, should memory run out before it has run.
class QueuedRequest {
 public:
  explicit QueuedRequest(Request queued) : request(std::move(queued)) {}
  ~QueuedRequest() { leave(); }
  QueuedRequest(const QueuedRequest&) = delete;
  QueuedRequest& operator=(const QueuedRequest&) = delete;

  // False: with `count` more there would be over `count_max` in `queue`.
  bool enter(std::atomic<std::size_t>& queue, std::size_t count, std::size_t count_max) {
    queue_ = &queue;
    count_ = count;
    if (queue.fetch_add(count) + count <= count_max) return true;
    leave();
    return false;
  }
  void leave() {
    if (queue_ != nullptr) *queue_ -= std::exchange(count_, 0);
  }

  const Request request;

 private:
  std::atomic<std::size_t>* queue_ = nullptr;
  std::size_t count_ = 0;
};

// `reply` in the form of a backend's `done`.
template <class Ack>
std::function<void(Result<Ack>)> reply_with(Request request, ReplyFn reply) {
  return [request = std::move(request), reply = std::move(reply)](const Result<Ack>& ack) {
    reply(ack ? encode_reply(request, *ack) : encode_failure(request, ack.error()));
  };
}

}  // namespace

LookupKeyServer::LookupKeyServer(LookupBackend& backend, Options options, Executor& quick,
                                 Executor& bulk)
    : backend_(backend), options_(options), quick_(quick), bulk_(bulk) {}

LookupServerStats LookupKeyServer::stats() const {
  return {.requests = requests_,
          .bad_requests = bad_requests_,
          .foreign_requests = foreign_requests_,
          .busy_lookups = busy_lookups_,
          .failed_requests = thrown_.count()};
}

void LookupKeyServer::handle(const Frames& message, ReplyFn reply) {
  ++requests_;
  const Status handled = contain([&] { decode_and_dispatch(message, reply); });
  if (handled) return;
  thrown_.add(handled.error());
  // Whoever owes the reply gives it once; should it have been given, this is nothing.
  (void)contain([&] { reply(encode_error(peek_request_id(message), handled.error())); });
}

void LookupKeyServer::decode_and_dispatch(const Frames& message, ReplyFn reply) {
  Result<Request> request = decode_request(message, options_.limits);
  if (!request) {
    refuse(message, request.error(), reply);
    return;
  }
  if (request->foreign) ++foreign_requests_;
  dispatch(std::move(*request), std::move(reply));
}

void LookupKeyServer::refuse(const Frames& message, const Error& error, const ReplyFn& reply) {
  const std::uint64_t count = ++bad_requests_;
  // Every doubling only: a peer that sends nothing but noise must not fill the disk.
  if (std::has_single_bit(count)) {
    log(LogLevel::kWarning, kComponent,
        "bad request " + std::to_string(count) + ": " + error.message);
  }
  reply(encode_error(peek_request_id(message), error));
}

void LookupKeyServer::dispatch(Request request, ReplyFn reply) {
  if (const auto* reset = std::get_if<ResetRequest>(&request.body)) log_reset(request, *reset);
  if (std::holds_alternative<LookupRequest>(request.body)) {
    queue_lookup(std::move(request), std::move(reply));
  } else if (const auto* fence = std::get_if<FenceRequest>(&request.body)) {
    reply(encode_reply(request, backend_.fence(fence->epoch)));
  } else if (const auto* reset = std::get_if<ResetRequest>(&request.body)) {
    backend_.reset(*reset, reply_with<ResetAck>(request, std::move(reply)));
  } else if (std::holds_alternative<DrainRequest>(request.body)) {
    backend_.drain(reply_with<FenceAck>(std::move(request), std::move(reply)));
  } else if (std::holds_alternative<PingRequest>(request.body)) {
    reply(encode_reply(request, backend_.status()));
  } else if (std::holds_alternative<WeightsWrittenRequest>(request.body)) {
    log(LogLevel::kInfo, kComponent, "the weights are to count as written");
    reply(encode_reply(request, backend_.weights_written()));
  } else {
    queue_store_command(std::move(request), std::move(reply));
  }
}

void LookupKeyServer::queue_store_command(Request request, ReplyFn reply) {
  const auto queued = std::make_shared<QueuedRequest>(std::move(request));
  if (!queued->enter(queued_store_commands_, 1, options_.queued_store_commands_max)) {
    reply(encode_failure(queued->request,
                         {Code::kBusy, "too many stats, scopes or purges are queued"}));
    return;
  }
  bulk_.post([this, queued, reply = std::move(reply)] {
    const Status ran = contain([&] { run_store_command(queued->request, reply); });
    queued->leave();
    if (ran) return;
    thrown_.add(ran.error());
    reply(encode_failure(queued->request, ran.error()));  // nothing if it was answered before
  });
}

void LookupKeyServer::run_store_command(const Request& request, const ReplyFn& reply) {
  if (const auto* purge = std::get_if<PurgeRequest>(&request.body)) {
    backend_.purge(*purge, reply_with<PurgeAck>(request, reply));
  } else if (const auto* scopes = std::get_if<ScopesRequest>(&request.body)) {
    reply_with<ScopesPage>(request, reply)(backend_.list_scopes(*scopes));
  } else {
    RankStats figures = backend_.rank_stats();
    figures.server = stats();
    reply(encode_reply(request, figures));
  }
}

void LookupKeyServer::queue_lookup(Request request, ReplyFn reply) {
  auto& lookup_request = std::get<LookupRequest>(request.body);
  // Only full blocks can hit: hashes beyond the tokens are ignored, as upstream does.
  const std::size_t full_blocks =
      lookup_request.num_tokens / static_cast<std::size_t>(options_.block_size);
  std::vector<BlockHash>& hashes = lookup_request.block_hashes;
  if (hashes.size() > full_blocks) hashes.resize(full_blocks);

  const std::size_t count = hashes.size();
  const auto queued = std::make_shared<QueuedRequest>(std::move(request));
  if (!queued->enter(queued_hashes_, count, options_.queued_hashes_max)) {
    ++busy_lookups_;
    reply(encode_failed_lookup(queued->request, {Code::kBusy, "too many lookups are queued"}));
    return;
  }
  Executor& lane = count > options_.quick_lookup_blocks_max ? bulk_ : quick_;
  lane.post([this, queued, reply = std::move(reply)] {
    const Result<Frames> answer =
        contain([&]() -> Result<Frames> { return lookup(queued->request); });
    queued->leave();
    if (!answer) thrown_.add(answer.error());
    reply(answer ? *answer : encode_failed_lookup(queued->request, answer.error()));
  });
}

Frames LookupKeyServer::lookup(const Request& request) {
  const auto& lookup_request = std::get<LookupRequest>(request.body);
  const Result<std::size_t> hit_blocks = backend_.lookup(lookup_request);
  if (!hit_blocks) return encode_failed_lookup(request, hit_blocks.error());
  return encode_reply(
      request, hit_length_tokens(*hit_blocks, options_.block_size, lookup_request.num_tokens));
}

}  // namespace newmoon
