// `newmoon bench lookup`: the round trip of one lookup through the real client, ipc
// socket, server and store.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "hash/block_hash.h"
#include "store/kv_store.h"

namespace newmoon {

struct LookupBenchRow {
  int blocks = 0;
  std::string case_name;  // all_hits, all_misses
  double p50_us = 0;
  double p99_us = 0;
};

// Two rows for each number of blocks, on a memory store. Takes about half a second a row.
Result<std::vector<LookupBenchRow>> bench_lookup(std::span<const int> blocks);
// The same on another store, which keeps the blocks that were asked for, in the scope of
// all zeros.
Result<std::vector<LookupBenchRow>> bench_lookup(std::span<const int> blocks, KvStore& store);

// `count` random ones.
std::vector<BlockHash> random_hashes(std::uint64_t seed, int count);

}  // namespace newmoon
