// `newmoon bench store`: what a put into and a get from the memory store cost beside
// a plain copy of the same bytes between the same buffers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace newmoon {

struct StoreBenchRow {
  std::size_t bytes = 0;  // of a value
  std::string op;         // "put", "get"
  bool checksum = false;
  double gb_per_s = 0;        // 10^9 bytes a second
  double limit_gb_per_s = 0;  // memcpy, or memcpy and XXH3-64 in one pass
  double ratio = 0;           // gb_per_s / limit_gb_per_s; required from 360 KiB on: 0.9
};

// A row for each of 64 KiB, 360 KiB and 2 MiB, put and get, with and without checksum.
// Values are copied from and to 61 scattered fragments, one call each. The store is
// full, as it is in use: a put takes the place of an older value. Medians of 5
// interleaved runs on the calling thread, in its processor time.
std::vector<StoreBenchRow> bench_store();

}  // namespace newmoon
