// Who holds which scope, by leases: what a backend keeps for KvStore::hold_scope().
// One thread at a time.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "hash/scope.h"

namespace newmoon {

inline constexpr std::size_t kHolderBytesMax = 256;  // of a name; the rest is cut off

class ScopeHolds {
 public:
  explicit ScopeHolds(std::size_t holds_max) : holds_max_(holds_max) {}

  // A lease of zero or less ends it. kBadRequest: no name. kBusy: `holds_max` run.
  Status hold(const ScopeId& scope, const std::string& holder, Duration lease, Time now);
  // The scopes with a lease that runs, and who has it, in order.
  std::map<ScopeId, std::vector<std::string>> holders(Time now);

 private:
  void drop_ended(Time now);

  std::size_t holds_max_;
  std::size_t holds_ = 0;  // in until_
  std::map<ScopeId, std::map<std::string, Time>> until_;
};

}  // namespace newmoon
