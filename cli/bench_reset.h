// `newmoon bench reset`: what a reset costs by the number of keys stored, over the
// whole path (core, client, ipc, server, worker), and what lookups feel while the
// values of the scope that was left are freed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/kv_store.h"

namespace newmoon {

struct ResetBenchRow {
  std::uint64_t keys = 0;
  double reset_ack_p50_us = 0;
  double reset_ack_p99_us = 0;
  double reset_ack_first_us_max = 0;  // of the resets that left all the keys behind
  double lookup_p99_idle_us = 0;      // 64 blocks, over ipc
  double lookup_p99_during_free_ratio = 0;
  double resident_gib = 0;  // of the process, with all keys stored
  int samples = 0;          // resets
};

// 64-byte values in a unique scope of a memory store, which each first reset of a round
// leaves.
Result<std::vector<ResetBenchRow>> bench_reset(std::span<const std::uint64_t> keys);

// One round of it on another store: microseconds of each reset's ack, the first of which
// leaves `keys` values.
Result<std::vector<double>> time_resets(KvStore& store, std::uint64_t keys, int resets);

}  // namespace newmoon
