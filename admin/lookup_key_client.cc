#include "admin/lookup_key_client.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace newmoon {
namespace {

constexpr std::string_view kComponent = "lookup-client";
constexpr std::size_t kLookupRank = 0;

std::size_t lookup_index() { return Request{}.body.index(); }

Result<ResetAck> to_reset_ack(const ReplyBody& body) {
  if (const auto* reset = std::get_if<ResetAck>(&body)) return *reset;
  if (const auto* fence = std::get_if<FenceAck>(&body)) return ResetAck{.fence = *fence};
  return fail(Code::kBadRequest, "the answer is of another kind than the question");
}

Result<ResetAck> decode_reset_ack(const Frames& frames, std::size_t request_index) {
  const Result<Reply> reply = decode_reply(frames, request_index);
  if (!reply) return std::unexpected(reply.error());
  if (!reply->body) return std::unexpected(reply->body.error());
  return to_reset_ack(*reply->body);
}

Result<ResetAck> decode_foreign_ack(const Frames& frames, std::size_t request_index) {
  // To a ping, which they do not know, any answer is a sign of life.
  if (request_index == Request{.body = PingRequest()}.body.index()) return ResetAck();
  const Result<bool> ok = decode_foreign_reset_reply(frames);
  if (!ok) return std::unexpected(ok.error());
  if (!*ok) return fail(Code::kInternal, "the server answered that its reset failed");
  return ResetAck();
}

Result<std::uint32_t> decode_lookup(const Frames& frames) {
  const Result<Reply> reply = decode_reply(frames, lookup_index());
  if (!reply) return std::unexpected(reply.error());
  if (!reply->body) return std::unexpected(reply->body.error());
  return std::get<std::uint32_t>(*reply->body);
}

}  // namespace

LookupKeyClient::LookupKeyClient(ClientTransport& transport, Clock& clock, Options options)
    : transport_(transport), clock_(clock), options_(options), ranks_(transport.peer_count()) {
  if (options_.foreign) strict_.emplace(transport, clock);
}

// ---- lookups ----

std::optional<Result<std::uint32_t>> LookupKeyClient::lookup(const std::string& request_id,
                                                             const LookupRequest& request) {
  poll();
  const auto found = lookups_.find(request_id);
  if (found != lookups_.end() && found->second.epoch != request.epoch) discard(request_id);
  const bool is_new = !lookups_.contains(request_id);
  // What was not asked must not pass for what is not answered.
  Lookup& lookup =
      is_new ? lookups_.emplace(request_id, ask(request)).first->second : lookups_.at(request_id);
  if (is_new && !lookup.answer) {
    open_lookups_.emplace(lookup.id, request_id);
  } else if (!lookup.answer && lookup.deadline <= clock_.now()) {
    lookup.answer = fail(Code::kDeadline, "rank 0 did not answer the lookup in time");
    open_lookups_.erase(lookup.id);
    set_silent(kLookupRank);
  }
  return lookup.answer;
}

LookupKeyClient::Lookup LookupKeyClient::ask(const LookupRequest& request) {
  Lookup lookup{.id = ++last_id_,
                .epoch = request.epoch,
                .deadline = clock_.now() + options_.lookup_timeout,
                .answer = std::nullopt};
  // Sent to a silent rank too: its answer, however late, is a sign of life.
  const Status sent = send(kLookupRank, lookup.id, Request{.body = request}, lookup.deadline);
  if (!sent) {
    lookup.answer = std::unexpected(sent.error());
  } else if (ranks_[kLookupRank].silent) {
    lookup.answer = fail(Code::kUnavailable, "rank 0 has stopped answering");
  }
  return lookup;
}

void LookupKeyClient::discard(const std::string& request_id) {
  const auto found = lookups_.find(request_id);
  if (found == lookups_.end()) return;
  open_lookups_.erase(found->second.id);
  lookups_.erase(found);
}

void LookupKeyClient::discard_all() {
  lookups_.clear();
  open_lookups_.clear();
}

std::size_t LookupKeyClient::pending_lookups() const { return open_lookups_.size(); }

// ---- to all ranks ----

void LookupKeyClient::fence(Epoch epoch) {
  poll();
  if (is_foreign()) return;
  for (std::size_t rank = 0; rank < rank_count(); ++rank) {
    const Request request{.body = FenceRequest{.epoch = epoch}};
    const Status sent = send(rank, ++last_id_, request, Time::max());
    if (!sent) log(LogLevel::kInfo, kComponent, to_string(sent.error()));
  }
}

LookupKeyClient::ResetAnswer LookupKeyClient::reset(const ResetRequest& request, Time deadline) {
  log(LogLevel::kDebug, kComponent,
      "reset(" + std::string(to_string(request.mode)) + ", epoch " + std::to_string(request.epoch) +
          ") of " + std::to_string(rank_count()) + " ranks");
  // Foreign servers drain and remove at one message; ours need two rounds.
  if (request.mode == ResetMode::kRemoveAll && !is_foreign()) return remove_all(request, deadline);
  return ask_ranks(Request{.body = request}, rank_count(), deadline);
}

LookupKeyClient::ResetAnswer LookupKeyClient::remove_all(const ResetRequest& request,
                                                         Time deadline) {
  ResetRequest step = request;
  step.remove = false;
  ResetAnswer answer = ask_ranks(Request{.body = step}, rank_count(), deadline);
  // A rank that may still put would put behind the removal.
  if (!answer.all_ok() || answer.ranks.empty()) return answer;
  step.remove = true;
  answer.ranks[0] = ask_ranks(Request{.body = step}, 1, deadline).ranks[0];
  return answer;
}

LookupKeyClient::ResetAnswer LookupKeyClient::ping(Time deadline) {
  return ask_ranks(Request{.body = PingRequest()}, rank_count(), deadline);
}

LookupKeyClient::ResetAnswer LookupKeyClient::ask_ranks(const Request& request, std::size_t count,
                                                        Time deadline) {
  poll();
  round_ = Round{.request_index = request.body.index(), .rank_of_id = {}, .answers = {}};
  round_->answers.resize(count);
  for (std::size_t rank = 0; rank < count; ++rank) ask_rank(rank, request, deadline);
  while (is_waiting() && clock_.now() < deadline) {
    transport_.wait(deadline);
    poll();
  }
  for (std::size_t rank = 0; rank < count; ++rank) give_up_on(rank);
  ResetAnswer answer{.ranks = std::move(round_->answers), .fenced = !is_foreign()};
  round_.reset();
  return answer;
}

void LookupKeyClient::ask_rank(std::size_t rank, const Request& request, Time deadline) {
  RankAnswer& answer = round_->answers[rank];
  answer.rank = rank;
  answer.ack = fail(Code::kDeadline, "rank " + std::to_string(rank) + " did not answer in time");
  if (is_foreign()) strict_->drop(rank);  // a reset does not queue behind lookups
  const std::uint64_t id = ++last_id_;
  const Status sent = send(rank, id, request, deadline);
  if (sent) {
    round_->rank_of_id.emplace(id, rank);
    return;
  }
  answer.ack = std::unexpected(sent.error());
  set_silent(rank);
}

// Silent ranks are not waited for (rule FIRST), unless a late answer just told that
// they are back.
bool LookupKeyClient::is_waiting() const {
  return std::ranges::any_of(round_->rank_of_id, [&](const auto& asked) {
    return !round_->answers[asked.second].answered && !ranks_[asked.second].silent;
  });
}

void LookupKeyClient::give_up_on(std::size_t rank) {
  if (round_->answers[rank].answered) return;
  set_silent(rank);
  if (is_foreign()) strict_->drop(rank);
}

std::vector<std::size_t> LookupKeyClient::ResetAnswer::silent_ranks() const {
  std::vector<std::size_t> silent;
  for (const RankAnswer& answer : ranks) {
    if (!answer.answered) silent.push_back(answer.rank);
  }
  return silent;
}

bool LookupKeyClient::ResetAnswer::all_ok() const {
  return std::ranges::all_of(ranks,
                             [](const RankAnswer& answer) { return answer.ack.has_value(); });
}

// ---- to one rank ----

template <class Answer>
Result<Answer> LookupKeyClient::ask_for(std::size_t rank, const Request& request, Time deadline) {
  Result<ReplyBody> reply = ask(rank, request, deadline);
  if (!reply) return std::unexpected(reply.error());
  return std::get<Answer>(std::move(*reply));
}

Result<RankStats> LookupKeyClient::stats(std::size_t rank, Time deadline) {
  return ask_for<RankStats>(rank, {.body = StatsRequest()}, deadline);
}

Result<std::vector<ScopeUsage>> LookupKeyClient::scopes(std::size_t rank, Time deadline) {
  std::vector<ScopeUsage> scopes;
  ScopesRequest request;
  while (true) {
    Result<ScopesPage> page = ask_for<ScopesPage>(rank, {.body = request}, deadline);
    if (!page) return std::unexpected(page.error());
    std::ranges::move(page->scopes, std::back_inserter(scopes));
    if (!page->more) return scopes;
    // A page that does not get on would be asked for for ever.
    if (page->scopes.empty() || (request.after && page->scopes.back().scope <= *request.after)) {
      return fail(Code::kBadRequest, "the pages of scopes are in no order");
    }
    request.after = page->scopes.back().scope;
  }
}

Result<PurgeAck> LookupKeyClient::purge(std::size_t rank, const ScopeSelection& selection,
                                        Time deadline) {
  return ask_for<PurgeAck>(rank, {.body = PurgeRequest{selection}}, deadline);
}

Result<FenceAck> LookupKeyClient::weights_written(std::size_t rank, Time deadline) {
  return ask_for<FenceAck>(rank, {.body = WeightsWrittenRequest()}, deadline);
}

Result<ReplyBody> LookupKeyClient::ask(std::size_t rank, const Request& request, Time deadline) {
  if (is_foreign()) {
    return fail(Code::kBadRequest, "upstream's servers know none of our commands");
  }
  poll();
  const std::uint64_t id = ++last_id_;
  const Status sent = send(rank, id, request, deadline);
  if (!sent) return std::unexpected(sent.error());
  question_ = Question{rank, id, request.body.index(), std::nullopt};
  while (!question_->answer && clock_.now() < deadline) {
    transport_.wait(deadline);
    poll();
  }
  const std::optional<Result<ReplyBody>> answer = std::move(question_->answer);
  question_.reset();
  if (answer) return *answer;
  return fail(Code::kDeadline, "rank " + std::to_string(rank) + " did not answer in time");
}

// ---- messages ----

Frames LookupKeyClient::encode(std::uint64_t id, const Request& request) const {
  if (!is_foreign()) return encode_request(id, request);
  if (const auto* lookup = std::get_if<LookupRequest>(&request.body)) {
    return encode_foreign_lookup(*options_.foreign, *lookup);
  }
  if (std::holds_alternative<ResetRequest>(request.body)) return encode_foreign_reset();
  return {to_bytes(PING_MSG)};  // unknown to them, hence answered
}

Status LookupKeyClient::send(std::size_t rank, std::uint64_t id, const Request& request,
                             Time deadline) {
  if (!is_foreign()) return transport_.send(rank, encode(id, request));
  strict_->ask(rank, id, encode(id, request), deadline);
  return {};
}

void LookupKeyClient::poll() {
  if (is_foreign()) {
    while (const auto answer = strict_->receive()) take(answer->peer, answer->id, answer->frames);
    return;
  }
  while (const auto message = transport_.receive()) {
    const auto& [rank, frames] = *message;
    ranks_[rank].silent = false;
    if (const auto id = peek_reply_id(frames)) take(rank, *id, frames);
  }
  probe_silent_ranks();
}

// Answers to what nobody waits for any more (late, discarded, fences, probes) end here.
void LookupKeyClient::take(std::size_t rank, std::uint64_t id, const Frames& frames) {
  const auto open = open_lookups_.find(id);
  if (open != open_lookups_.end() && rank == kLookupRank) {
    lookups_.at(open->second).answer =
        is_foreign() ? decode_foreign_lookup_reply(frames) : decode_lookup(frames);
    open_lookups_.erase(open);
    return;
  }
  if (question_ && question_->id == id && question_->rank == rank) {
    const Result<Reply> reply = decode_reply(frames, question_->request_index);
    question_->answer = reply ? reply->body : std::unexpected(reply.error());
  }
  if (!round_) return;
  const auto asked = round_->rank_of_id.find(id);
  if (asked != round_->rank_of_id.end() && asked->second == rank) take_round(rank, frames);
}

void LookupKeyClient::take_round(std::size_t rank, const Frames& frames) {
  RankAnswer& answer = round_->answers[rank];
  if (answer.answered) return;
  answer.answered = true;
  answer.ack = is_foreign() ? decode_foreign_ack(frames, round_->request_index)
                            : decode_reset_ack(frames, round_->request_index);
}

void LookupKeyClient::set_silent(std::size_t rank) {
  // Foreign servers cannot be probed while they owe an answer, so they are always awaited.
  if (is_foreign() || ranks_[rank].silent) return;
  ranks_[rank] = {.silent = true, .next_probe = clock_.now() + options_.probe_interval};
  log(LogLevel::kWarning, kComponent, "rank " + std::to_string(rank) + " has stopped answering");
}

void LookupKeyClient::probe_silent_ranks() {
  const Time now = clock_.now();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].silent || now < ranks_[rank].next_probe) continue;
    ranks_[rank].next_probe = now + options_.probe_interval;
    // If it cannot be sent, the rank stays silent, which is all that a probe can tell.
    (void)send(rank, ++last_id_, Request{.body = PingRequest()}, Time::max());
  }
}

}  // namespace newmoon
