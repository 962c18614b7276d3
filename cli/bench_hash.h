// `newmoon bench hash`: what hashing a long prompt costs beside the bare hash.
#pragma once

#include <string>
#include <vector>

namespace newmoon {

struct HashBenchRow {
  std::string algo;
  int tokens = 0;
  double ms = 0;        // BlockHasher::extend() over all tokens, 16 a block
  double limit_ms = 0;  // the bare hash of the same messages, encoded before, one call each
  double ratio = 0;     // ms / limit_ms; required: at most 1.5
};

// One row an algorithm; times are medians of 5 interleaved runs on the calling thread.
std::vector<HashBenchRow> bench_hash();

}  // namespace newmoon
