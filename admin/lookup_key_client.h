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
#include "base/clock.h"
#include "base/transport.h"

namespace newmoon {

class LookupKeyClient {
 public:
  struct Options {
    Duration lookup_timeout = std::chrono::seconds(1);  // then the lookup is a miss
    // Set when the servers are upstream's: resets and fences then answer fenced=false.
    std::optional<ForeignDialect> foreign;
  };

  LookupKeyClient(ClientTransport& transport, Clock& clock, Options options);

  std::size_t rank_count() const { return transport_.peer_count(); }

  // Asks once per request id and then polls: nullopt until the answer is there or
  // the timeout passed; then the hit length in tokens, or why there is none. The
  // answer stays until discard() or a lookup with another epoch.
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
    Result<ResetAck> ack;  // kDeadline: no answer in time; kUnavailable: not sent
  };
  struct ResetAnswer {
    std::vector<RankAnswer> ranks;  // in rank order
    bool fenced = true;             // false: foreign servers, which know no epochs
    std::vector<std::size_t> silent_ranks() const;
    bool all_ok() const;
  };
  // Blocks until every rank answered or `deadline`. A rank that was silent last time
  // is told, but waited for only as long as the others take; any answer from it, late
  // ones too, makes it one of the awaited again. kRemoveAll: drains every rank, then
  // has rank 0 remove, all within the same deadline.
  ResetAnswer reset(const ResetRequest& request, Time deadline);

  // Round trip to every rank, e.g. at start; as reset() in its waiting.
  ResetAnswer ping(Time deadline);

  // Takes in what has arrived. Called by every method above; call it when idle too.
  void poll();

 private:
  struct Pending;  // see lookup_key_client.cc

  ClientTransport& transport_;
  Clock& clock_;
  const Options options_;
};

}  // namespace newmoon
