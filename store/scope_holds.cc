#include "store/scope_holds.h"

#include <algorithm>

namespace newmoon {

Status ScopeHolds::hold(const ScopeId& scope, const std::string& holder, Duration lease, Time now) {
  if (holder.empty()) return fail(Code::kBadRequest, "hold_scope: the holder has no name");
  const std::string name = holder.substr(0, kHolderBytesMax);
  drop_ended(now);
  if (lease <= Duration::zero()) {
    const auto held = until_.find(scope);
    if (held == until_.end()) return {};
    holds_ -= held->second.erase(name);
    if (held->second.empty()) until_.erase(held);
    return {};
  }
  const auto held = until_.find(scope);
  const bool is_new = held == until_.end() || !held->second.contains(name);
  if (is_new && holds_ >= holds_max_) {
    return fail(Code::kBusy, "hold_scope: " + std::to_string(holds_max_) + " scopes are held");
  }
  holds_ += is_new ? 1 : 0;
  // A lease from a peer may be of any length: the sum must not wrap.
  until_[scope][name] = now + std::min(lease, Time::max() - now);
  return {};
}

std::map<ScopeId, std::vector<std::string>> ScopeHolds::holders(Time now) {
  drop_ended(now);
  std::map<ScopeId, std::vector<std::string>> holders;
  for (const auto& [scope, leases] : until_) {
    for (const auto& [holder, until] : leases) holders[scope].push_back(holder);
  }
  return holders;
}

void ScopeHolds::drop_ended(Time now) {
  for (auto& [scope, leases] : until_) {
    holds_ -= std::erase_if(leases, [now](const auto& lease) { return lease.second <= now; });
  }
  std::erase_if(until_, [](const auto& held) { return held.second.empty(); });
}

}  // namespace newmoon
