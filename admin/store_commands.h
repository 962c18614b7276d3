// What the admin commands stats, scopes and purge ask and answer (admin/protocol.h has
// their frames, docs/formats.md their keys).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hash/scope.h"
#include "store/kv_store.h"
#include "store/scope_purge.h"

namespace newmoon {

// What a rank has moved, since it started.
struct StoreWorkerStats {
  std::uint64_t saved_blocks = 0;
  std::uint64_t loaded_blocks = 0;
  std::uint64_t missing_blocks = 0;  // promised by a lookup, gone at load
  std::uint64_t corrupt_blocks = 0;  // removed from the store, to be saved anew
  std::uint64_t refused_jobs = 0;    // below the floor or unbound, queued or not
  std::uint64_t dropped_saves = 0;   // queue full, store busy or scope purged
  std::uint64_t dropped_loads = 0;   // queue full, or out of time
  std::uint64_t store_errors = 0;    // failed calls other than misses and the above
};

// What a rank's end of the channel was sent, since it started.
struct LookupServerStats {
  std::uint64_t requests = 0;
  std::uint64_t bad_requests = 0;
  std::uint64_t foreign_requests = 0;
  std::uint64_t busy_lookups = 0;     // refused since too many were queued
  std::uint64_t failed_requests = 0;  // something was thrown, such as memory that ran out
};

// Purges that the rank took on by admin command, in scopes.
struct PurgeStats {
  std::uint64_t accepted = 0;
  std::uint64_t done = 0;  // handed to the store; StoreStats tells of what it still frees
  std::uint64_t failed = 0;
};

struct RankStats {
  Epoch epoch = 0;  // highest that the rank has heard of
  Epoch floor = 0;
  std::uint64_t weight_writes = 0;
  std::uint64_t queued_saves = 0;
  std::uint64_t queued_loads = 0;
  StoreWorkerStats transfers{};
  PurgeStats purges{};
  LookupServerStats server{};
  StoreStats store{};         // all zero if the store did not answer:
  std::string store_error{};  // "" if it did
};

// Every figure of RankStats with its name, in the order of the wire: `visit(name, figure)`.
template <class Stats, class Visit>
void visit_figures(Stats& stats, Visit visit) {
  visit("epoch", stats.epoch);
  visit("floor", stats.floor);
  visit("weight_writes", stats.weight_writes);
  visit("queued_saves", stats.queued_saves);
  visit("queued_loads", stats.queued_loads);
  visit("saved_blocks", stats.transfers.saved_blocks);
  visit("loaded_blocks", stats.transfers.loaded_blocks);
  visit("missing_blocks", stats.transfers.missing_blocks);
  visit("corrupt_blocks", stats.transfers.corrupt_blocks);
  visit("refused_jobs", stats.transfers.refused_jobs);
  visit("dropped_saves", stats.transfers.dropped_saves);
  visit("dropped_loads", stats.transfers.dropped_loads);
  visit("store_errors", stats.transfers.store_errors);
  visit("purges_accepted", stats.purges.accepted);
  visit("purges_done", stats.purges.done);
  visit("purges_failed", stats.purges.failed);
  visit("requests", stats.server.requests);
  visit("bad_requests", stats.server.bad_requests);
  visit("foreign_requests", stats.server.foreign_requests);
  visit("busy_lookups", stats.server.busy_lookups);
  visit("failed_requests", stats.server.failed_requests);
  visit("store_blocks", stats.store.blocks);
  visit("store_bytes", stats.store.bytes);
  visit("store_bytes_to_free", stats.store.bytes_to_free);
  visit("store_budget_bytes", stats.store.budget_bytes);
  visit("store_evicted_blocks", stats.store.evicted_blocks);
  visit("store_refused_late_puts", stats.store.refused_late_puts);
  visit("store_unfinished_purges", stats.store.unfinished_purges);
  visit("store_owed_rechecks", stats.store.owed_rechecks);
  visit("store_recheck_left_s", stats.store.recheck_left_s);
}

struct StatsRequest {};

// A page of the scopes in the store, in the order of their ids.
struct ScopesRequest {
  std::optional<ScopeId> after{};  // the last one of the page before
};
struct ScopesPage {
  std::vector<ScopeUsage> scopes{};
  bool more = false;
};

struct PurgeRequest {
  ScopeSelection selection;
};
// What is being purged from now on; stats tells how it goes.
struct PurgeAck {
  std::uint64_t scopes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
};

}  // namespace newmoon
