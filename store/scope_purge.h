// Purging at somebody's request (rule PURGE): which scopes that is, and the refusal of
// those that somebody uses.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "hash/scope.h"
#include "store/kv_store.h"

namespace newmoon {

// One scope, or all scopes of a namespace; exactly one of the two is set.
struct ScopeSelection {
  std::optional<ScopeId> scope{};
  std::optional<std::string> name_space{};
};
// "scope 36..", "namespace 'run-7'"
std::string to_string(const ScopeSelection& selection);

// The scope that a listed one's description names; nullopt: it has none, one that was cut
// short, or one whose id is not the listed one's.
std::optional<Scope> described_scope(const ScopeUsage& usage);

// Those of `scopes` that are selected. A scope whose description is unknown belongs to no
// namespace.
std::vector<ScopeUsage> select_scopes(std::vector<ScopeUsage> scopes,
                                      const ScopeSelection& selection);

// What a purge would remove now. kMiss: nothing of that name is in the store. kBusy: one
// of the scopes is held; says which, and by whom. Nothing of the selection may be purged
// then. Between this and the purge somebody may begin to use a scope: that costs him
// misses, and no more. Errors of list_scopes() besides.
Result<std::vector<ScopeUsage>> scopes_to_purge(KvStore& store, const ScopeSelection& selection);

}  // namespace newmoon
