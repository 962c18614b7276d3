// `newmoon bench purge`: what lookups feel while a scope of many keys is purged.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace newmoon {

struct PurgeBenchRow {
  std::uint64_t keys = 0;         // purged in each round
  double lookup_p50_idle_us = 0;  // 64 blocks of another scope, all there
  double lookup_p99_idle_us = 0;
  double lookup_p50_during_us = 0;
  double lookup_p99_during_us = 0;
  double lookup_p99_ratio = 0;
  double lookup_max_idle_us = 0;
  double lookup_max_during_us = 0;
  double purge_ms = 0;  // until the store has given everything back; median
  int samples_idle = 0;
  int samples_during = 0;
};

// On `store`, "mooncake" (with a master of its own) or a URL that other processes may share,
// which is left without what the bench put into it. The purge is another client's, as an operator's
// is; the lookups are of two clients in turn, which a server may have on different threads.
Result<PurgeBenchRow> bench_purge(const std::string& store, std::uint64_t keys);

}  // namespace newmoon
