#include "store/mooncake/purger.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/contain.h"
#include "base/log.h"
#include "hash/key.h"
#include "store/mooncake/error_code.h"

namespace newmoon {
namespace {

// One pass for several scopes, since each costs the master a walk over all keys.
constexpr std::size_t kScopesAtOnce = 16;
constexpr std::size_t kBatchKeys = 256;  // half a millisecond
// After a failed pass; twice as long after each further one.
constexpr Duration kRetryPause = std::chrono::milliseconds(200);
constexpr Duration kRetryPauseMax = std::chrono::seconds(30);

using Work = ScopeGate::Work;

std::string pattern_of(std::span<const Work> work) {
  std::string pattern;
  for (const Work& item : work) {
    pattern += (pattern.empty() ? "^nm1:(?:" : "|") + item.scope.hex();
  }
  return pattern + "):";
}

WantedKey keys_of(std::span<const Work> work) {
  std::set<ScopeId> scopes;
  for (const Work& item : work) scopes.insert(item.scope);
  return [scopes = std::move(scopes)](std::string_view text) {
    const Result<Key> key = parse_key(text);
    return key && scopes.contains(key->scope);
  };
}

// How many of them went. What is gone already or not complete is no error.
Result<std::int64_t> remove_batch(MooncakeClient& client, std::span<const std::string> keys) {
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<std::int64_t> codes(keys.size());
  if (Status done = client.batch_remove(views, codes); !done) return std::unexpected(done.error());
  std::int64_t removed = 0;
  for (const std::int64_t code : codes) {
    if (code >= 0) {
      ++removed;
    } else if (code != kMooncakeNotFound && code != kMooncakeBeingWritten) {
      return code;
    }
  }
  return removed;
}

// Half of the time is left to the others. Ends early once the gate is stopped.
Result<std::int64_t> remove_gently(MooncakeClient& client, ScopeGate& gate, Clock& clock,
                                   std::span<const std::string> keys) {
  std::int64_t removed = 0;
  while (!keys.empty()) {
    const auto batch = keys.first(std::min(kBatchKeys, keys.size()));
    const Time start = clock.now();
    const Result<std::int64_t> went = remove_batch(client, batch);
    if (!went || *went < 0) return went;
    removed += *went;
    keys = keys.subspan(batch.size());
    if (!gate.pause(clock.now() - start)) break;
  }
  return removed;
}

// How many values went, or the master's code.
Result<std::int64_t> pass_over(MooncakeClient& client, ScopeGate& gate,
                               const ListManyKeys& list_many, Clock& clock,
                               std::span<const Work> work) {
  const std::optional<std::vector<std::string>> keys = list_many(keys_of(work));
  return keys ? remove_gently(client, gate, clock, *keys)
              : client.remove_by_regex(pattern_of(work));
}

// `pause`: after it, if it fails.
void purge(MooncakeClient& client, ScopeGate& gate, const ListManyKeys& list_many, Clock& clock,
           std::span<const Work> work, Duration& pause) {
  const Result<std::int64_t> removed = pass_over(client, gate, list_many, clock, work);
  if (removed && *removed >= 0) {
    pause = kRetryPause;
    gate.finish(work, static_cast<std::uint64_t>(*removed));
    return;
  }
  const Error error = removed ? mooncake_error("purge", *removed) : removed.error();
  // A master that stays away is not news with every try.
  log(pause == kRetryPause ? LogLevel::kWarning : LogLevel::kDebug, "mooncake",
      error.message + "; scope " + work[0].scope.hex() + " stays hidden and is tried again");
  gate.put_off(work, pause);
  pause = std::min(pause * 2, kRetryPauseMax);
}

}  // namespace

void run_purges(MooncakeClient& client, ScopeGate& gate, const ListManyKeys& list_many,
                Clock& clock) {
  ErrorCounter thrown("mooncake purge");
  Duration pause = kRetryPause;
  bool stopped = false;
  while (!stopped) {
    const Status purged = contain([&] {
      const std::vector<Work> work = gate.next_work(kScopesAtOnce);
      stopped = work.empty();
      if (!stopped) purge(client, gate, list_many, clock, work, pause);
    });
    if (purged) continue;
    // What was to be purged is due still. Nobody else would purge ever again.
    thrown.add(purged.error());
    stopped = !gate.pause(kRetryPause);
  }
}

}  // namespace newmoon
