// LookupKeyClient: the scheduler's end of the lookup/admin channel to all ranks of
// one engine. Lookups go to rank 0 and never block; fence goes to every rank and
// waits for nobody; reset goes to every rank in parallel and waits for all of them
// within one deadline (rule FIRST). No call can hang, whatever the servers do.
//
// Belongs to one thread (the engine's loop). Peer r of the transport is rank r.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "admin/protocol.h"
#include "admin/strict_channel.h"
#include "base/clock.h"
#include "base/transport.h"

namespace newmoon {

class LookupKeyClient {
 public:
  struct Options {
    Duration lookup_timeout = std::chrono::seconds(1);  // then the lookup is a miss
    Duration probe_interval = std::chrono::seconds(1);  // pings to a rank that fell silent
    // Set when the servers are upstream's: resets and fences then answer fenced=false.
    std::optional<ForeignDialect> foreign = std::nullopt;
  };

  LookupKeyClient(ClientTransport& transport, Clock& clock, Options options);

  std::size_t rank_count() const { return transport_.peer_count(); }

  // Asks once per request id and then polls: nullopt until the answer is there or
  // the timeout passed; then the hit length in tokens, or why there is none. The
  // answer stays until discard() or a lookup with another epoch. While rank 0 is
  // silent the answer is kUnavailable at once, so that no request waits for it.
  std::optional<Result<std::uint32_t>> lookup(const std::string& request_id,
                                              const LookupRequest& request);
  // Forgets a request's lookup; a late answer to it is dropped.
  void discard(const std::string& request_id);
  void discard_all();
  std::size_t pending_lookups() const;

  // Tells every rank to raise its floor. Fire and forget: the floor also travels in
  // each step's metadata, so a lost message costs nothing but time.
  void fence(Epoch epoch);

  struct RankAnswer {
    std::size_t rank = 0;
    bool answered = false;  // false: `ack` is kDeadline (too late) or kUnavailable (not sent)
    Result<ResetAck> ack;
  };
  struct ResetAnswer {
    std::vector<RankAnswer> ranks;  // in rank order
    bool fenced = true;             // false: foreign servers, which know no epochs
    std::vector<std::size_t> silent_ranks() const;
    bool all_ok() const;
  };
  // Blocks until every rank answered or `deadline`. A rank that was silent last time
  // is told, but waited for only as long as the others take; any answer from it, late
  // ones and those to probes too, makes it one of the awaited again. kRemoveAll drains
  // every rank, then has rank 0 remove, all within the same deadline; if a rank did not
  // drain, nothing is removed and its answer says why.
  ResetAnswer reset(const ResetRequest& request, Time deadline);

  // Round trip to every rank, e.g. at start; as reset() in its waiting.
  ResetAnswer ping(Time deadline);

  // One question to one rank: stats, scopes, purge, weights written. Blocks until it answered or
  // `deadline`: kDeadline. kUnavailable: it could not be sent. kBadRequest: the server is
  // upstream's, which knows none of them. Whatever else the rank answers.
  Result<RankStats> stats(std::size_t rank, Time deadline);
  // All pages.
  Result<std::vector<ScopeUsage>> scopes(std::size_t rank, Time deadline);
  Result<PurgeAck> purge(std::size_t rank, const ScopeSelection& selection, Time deadline);
  // Has the rank count its weights as written. Its engine sees that at its next step.
  Result<FenceAck> weights_written(std::size_t rank, Time deadline);

  // Takes in what has arrived, and probes the silent ranks. Called by every method
  // above; call it when idle too.
  void poll();

 private:
  struct Lookup {
    std::uint64_t id = 0;
    Epoch epoch = 0;
    Time deadline{};
    std::optional<Result<std::uint32_t>> answer;
  };
  // One question to several ranks, while it is waited for.
  struct Round {
    std::size_t request_index;
    std::unordered_map<std::uint64_t, std::size_t> rank_of_id;
    std::vector<RankAnswer> answers;  // by rank
  };
  // One question to one rank.
  struct Question {
    std::size_t rank;
    std::uint64_t id;
    std::size_t request_index;
    std::optional<Result<ReplyBody>> answer;
  };
  struct Rank {
    bool silent = false;
    Time next_probe{};
  };

  bool is_foreign() const { return strict_.has_value(); }
  Lookup ask(const LookupRequest& request);
  Frames encode(std::uint64_t id, const Request& request) const;
  Status send(std::size_t rank, std::uint64_t id, const Request& request, Time deadline);
  void take(std::size_t rank, std::uint64_t id, const Frames& frames);
  void take_round(std::size_t rank, const Frames& frames);
  void set_silent(std::size_t rank);
  void probe_silent_ranks();
  ResetAnswer remove_all(const ResetRequest& request, Time deadline);
  // Asks ranks [0, count).
  ResetAnswer ask_ranks(const Request& request, std::size_t count, Time deadline);
  void ask_rank(std::size_t rank, const Request& request, Time deadline);
  Result<ReplyBody> ask(std::size_t rank, const Request& request, Time deadline);
  template <class Answer>
  Result<Answer> ask_for(std::size_t rank, const Request& request, Time deadline);
  bool is_waiting() const;
  void give_up_on(std::size_t rank);

  ClientTransport& transport_;
  Clock& clock_;
  const Options options_;
  std::optional<StrictChannel> strict_;  // set for foreign servers
  std::uint64_t last_id_ = 0;
  std::unordered_map<std::string, Lookup> lookups_;              // by request id
  std::unordered_map<std::uint64_t, std::string> open_lookups_;  // request id by message id
  std::optional<Round> round_;
  std::optional<Question> question_;
  std::vector<Rank> ranks_;
};

}  // namespace newmoon
