// What the benchmarks of stores store: many small values under hashes of a series.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "hash/block_hash.h"
#include "store/kv_store.h"

namespace newmoon {

// The hash of block `number`: as long, and as spread, as a digest.
BlockHash numbered_hash(std::uint64_t number);

// Puts a value of 64 bytes for each of the hashes 0 .. count - 1 into a scope, in batches.
// The first error of the store.
Status fill_scope(KvStore& store, const ScopeId& scope, std::uint64_t count);

}  // namespace newmoon
