#include "store/mooncake/purger.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "store/mooncake/error_code.h"

namespace newmoon {
namespace {

// One pattern for several scopes, since each costs the master a walk over all keys.
constexpr std::size_t kScopesAtOnce = 16;
// After a failed pass; twice as long after each further one.
constexpr Duration kRetryPause = std::chrono::milliseconds(200);
constexpr Duration kRetryPauseMax = std::chrono::seconds(30);

std::string pattern_of(std::span<const ScopeGate::Work> work) {
  std::string pattern;
  for (const ScopeGate::Work& item : work) {
    pattern += (pattern.empty() ? "^nm1:(?:" : "|") + item.scope.hex();
  }
  return pattern + "):";
}

}  // namespace

void run_purges(MooncakeClient& client, ScopeGate& gate) {
  Duration pause = kRetryPause;
  while (true) {
    const std::vector<ScopeGate::Work> work = gate.next_work(kScopesAtOnce);
    if (work.empty()) return;
    const Result<std::int64_t> removed = client.remove_by_regex(pattern_of(work));
    if (removed && *removed >= 0) {
      pause = kRetryPause;
      gate.finish(work, static_cast<std::uint64_t>(*removed));
      continue;
    }
    const Error error = removed ? mooncake_error("purge", *removed) : removed.error();
    // A master that stays away is not news with every try.
    log(pause == kRetryPause ? LogLevel::kWarning : LogLevel::kDebug, "mooncake",
        error.message + "; scope " + work[0].scope.hex() + " stays hidden and is tried again");
    gate.put_off(work, pause);
    pause = std::min(pause * 2, kRetryPauseMax);
  }
}

}  // namespace newmoon
