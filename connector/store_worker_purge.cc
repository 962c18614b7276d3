// StoreWorker: the admin commands that look into the store, and rule PURGE.
#include <algorithm>
#include <utility>

#include "admin/store_codec.h"
#include "base/log.h"
#include "connector/store_worker.h"
#include "store/scope_purge.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "store_worker";
constexpr std::size_t kUsedScopesMax = 4096;  // adapters of one epoch; more are forgotten

PurgeAck sum_of(std::span<const ScopeUsage> scopes) {
  PurgeAck ack{.scopes = scopes.size()};
  for (const ScopeUsage& usage : scopes) {
    ack.blocks += usage.blocks;
    ack.bytes += usage.bytes;
  }
  return ack;
}

}  // namespace

Result<ScopesPage> StoreWorker::list_scopes(const ScopesRequest& request) {
  Result<std::vector<ScopeUsage>> listed = store_.list_scopes();
  if (!listed) return std::unexpected(listed.error());
  std::vector<ScopeUsage>& scopes = *listed;
  if (request.after) {
    const auto next = std::ranges::upper_bound(scopes, *request.after, {}, &ScopeUsage::scope);
    scopes.erase(scopes.begin(), next);
  }
  ScopesPage page{.scopes = {}, .more = scopes.size() > kPageScopesMax};
  if (page.more) scopes.resize(kPageScopesMax);
  page.scopes = std::move(scopes);
  return page;
}

void StoreWorker::purge(const PurgeRequest& request, std::function<void(Result<PurgeAck>)> done) {
  const Result<std::vector<ScopeUsage>> scopes = scopes_to_purge(store_, request.selection);
  if (!scopes) return done(std::unexpected(scopes.error()));
  if (const Status unused = check_unused(*scopes); !unused) {
    return done(std::unexpected(unused.error()));
  }
  {
    MutexLock lock(mutex_);
    purges_.accepted += scopes->size();
  }
  done(sum_of(*scopes));
  for (const ScopeUsage& usage : *scopes) {
    // Not for good: somebody may return to a named scope.
    const Status purged = store_.purge_scope(usage.scope, false);
    if (!purged) {
      log(LogLevel::kWarning, kLog,
          "purge of scope " + usage.scope.hex() + ": " + to_string(purged.error()));
    }
    MutexLock lock(mutex_);
    ++(purged ? purges_.done : purges_.failed);
  }
}

// What the store knows of its users may be late or lost; what this engine itself uses is
// known here.
Status StoreWorker::check_unused(std::span<const ScopeUsage> scopes) {
  MutexLock lock(mutex_);
  if (used_.epoch < floor_.floor()) return {};
  for (const ScopeUsage& usage : scopes) {
    if (!used_.scopes.contains(usage.scope)) continue;
    return fail(Code::kBusy, "scope " + usage.scope.hex() +
                                 " is in use by the engine that was asked: nothing was purged");
  }
  return {};
}

void StoreWorker::note_used(const ScopeId& scope, Epoch epoch) {
  MutexLock lock(mutex_);
  if (epoch < used_.epoch) return;
  if (epoch > used_.epoch) used_ = {epoch, {}};
  if (used_.scopes.size() < kUsedScopesMax) used_.scopes.insert(scope);
}

}  // namespace newmoon
