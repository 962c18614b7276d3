// `newmoon bench mooncake`: what our layer adds to a real Mooncake store, beside the wheel's
// own calls from C++ in the same process, on the same store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cli/bench_lookup.h"
#include "cli/store_address.h"
#include "store/mooncake/mooncake_store.h"

namespace newmoon {

struct MooncakeTransferRow {
  std::size_t bytes = 0;  // of a value
  std::size_t batch = 0;  // values a call
  // put: as saves from vLLM come: checksums known, memory registered, keys nobody else writes,
  // as under identity unique. put_shared: keys that others may write, which takes a look
  // afterwards. put_hashed: put computes the checksums. put_copied: so it does, from memory the
  // store does not know, as saves of llama.cpp come. get.
  std::string op;
  double gb_per_s = 0;        // 10^9 bytes a second
  double wheel_gb_per_s = 0;  // the wheel's own call
  double ratio = 0;           // gb_per_s / wheel_gb_per_s
};

struct MooncakeLookupRow {
  int blocks = 0;
  std::string case_name;  // all_hits, all_misses
  double us = 0;          // KvStore::hit_prefix()
  double bare_us = 0;     // one batch_is_exist, its key strings ready
  double ratio = 0;       // us / bare_us
};

struct MooncakeResetRow {
  std::uint64_t keys = 0;
  double reset_ack_p50_us = 0;
  double reset_ack_first_us = 0;  // of the reset that left the keys
  double remove_all_us = 0;       // the wheel's remove_all(force) on as many keys
};

// A store that was joined, and the wheel's client under it. One thread.
class MooncakeBench {
 public:
  // "mooncake": on a master of its own; or "mooncake://HOST:PORT?...", a master that runs
  // and keeps nothing of value: the store is emptied.
  static Result<std::unique_ptr<MooncakeBench>> open(const std::string& url);

  // Medians of `runs`, by the wall's clock; the sides of a run take turns call by call. All move
  // the same bytes, from and to the same memory, which the store knows but for "put_copied". The
  // wheel's moves them bare; ours adds header and checksum. "put" and "get" next to the wheel's
  // are timed apart from the other rows, whose wheel is another sample.
  Result<std::vector<MooncakeTransferRow>> transfers(std::span<const std::size_t> value_bytes,
                                                     std::span<const std::size_t> batches,
                                                     int runs);
  Result<std::vector<MooncakeLookupRow>> lookups(std::span<const int> blocks);
  Result<std::vector<LookupBenchRow>> round_trips(std::span<const int> blocks) {
    return bench_lookup(blocks, *store_);
  }
  Result<std::vector<MooncakeResetRow>> resets(std::span<const std::uint64_t> keys);

 private:
  MooncakeBench() = default;
  Result<MooncakeLookupRow> lookup(std::string case_name, std::span<const BlockHash> blocks,
                                   std::size_t expected_hits);
  Result<double> time_remove_all(std::uint64_t keys);

  SystemClock clock_;
  StoreAddress address_;
  std::unique_ptr<MooncakeStore> store_;
};

}  // namespace newmoon
