#include "store/scope_purge.h"

#include <utility>

#include "hash/scope_text.h"

namespace newmoon {
namespace {

bool is_selected(const ScopeUsage& usage, const ScopeSelection& selection) {
  if (selection.scope) return usage.scope == *selection.scope;
  const std::optional<Scope> scope = described_scope(usage);
  return scope && scope->name_space == selection.name_space;
}

std::string names(const std::vector<std::string>& holders) {
  std::string text = holders.front();
  if (holders.size() > 1) text += " and " + std::to_string(holders.size() - 1) + " more";
  return text;
}

}  // namespace

std::string to_string(const ScopeSelection& selection) {
  if (selection.scope) return "scope " + selection.scope->hex();
  return "namespace '" + selection.name_space.value_or("") + "'";
}

std::optional<Scope> described_scope(const ScopeUsage& usage) {
  Result<Scope> scope = parse_scope(usage.description);
  if (!scope || scope->id() != usage.scope) return std::nullopt;
  return std::move(*scope);
}

std::vector<ScopeUsage> select_scopes(std::vector<ScopeUsage> scopes,
                                      const ScopeSelection& selection) {
  std::erase_if(scopes, [&](const ScopeUsage& usage) { return !is_selected(usage, selection); });
  return scopes;
}

Result<std::vector<ScopeUsage>> scopes_to_purge(KvStore& store, const ScopeSelection& selection) {
  Result<std::vector<ScopeUsage>> listed = store.list_scopes();
  if (!listed) return listed;
  std::vector<ScopeUsage> selected = select_scopes(std::move(*listed), selection);
  if (selected.empty()) {
    return fail(Code::kMiss, to_string(selection) + " is not in the store");
  }
  for (const ScopeUsage& usage : selected) {
    if (usage.holders.empty()) continue;
    return fail(Code::kBusy, "scope " + usage.scope.hex() + " is in use by " +
                                 names(usage.holders) +
                                 ": nothing was purged; stop the engine or move it to other "
                                 "weights first");
  }
  return selected;
}

}  // namespace newmoon
