// Short forms for hashes, scopes and jobs in tests.
#pragma once

#include <vector>

#include "connector/metadata.h"
#include "hash/sha256.h"

namespace newmoon::testing {

inline BlockHash test_hash(int n) {
  return BlockHash(sha256(as_bytes("block " + std::to_string(n))));
}

inline ScopeId test_scope(std::uint8_t n) { return ScopeId{{n}}; }

// Block b under hash n = b, for each b.
inline std::vector<BlockRef> test_blocks(const std::vector<BlockId>& blocks) {
  std::vector<BlockRef> refs;
  for (const BlockId block : blocks) refs.push_back({test_hash(block), block});
  return refs;
}

inline WorkerReport report_of(std::size_t rank, LoadReport load) {
  WorkerReport report;
  report.rank = rank;
  report.loads.push_back(std::move(load));
  return report;
}
inline WorkerReport report_of(std::size_t rank, SaveReport save) {
  WorkerReport report;
  report.rank = rank;
  report.saves.push_back(save);
  return report;
}

inline ConnectorMetadata step_with(SaveJob job) { return {job.epoch, {}, {std::move(job)}}; }
inline ConnectorMetadata step_with(LoadJob job) { return {job.epoch, {std::move(job)}, {}}; }

}  // namespace newmoon::testing
