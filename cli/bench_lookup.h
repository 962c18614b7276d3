// `newmoon bench lookup`: the round trip of one lookup through the real client, ipc
// socket, server and memory store.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace newmoon {

struct LookupBenchRow {
  int blocks = 0;
  std::string case_name;  // all_hits, all_misses
  double p50_us = 0;
  double p99_us = 0;
};

// Two rows for each number of blocks. Takes about half a second a row.
Result<std::vector<LookupBenchRow>> bench_lookup(std::span<const int> blocks);

}  // namespace newmoon
