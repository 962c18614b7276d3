// What passes between the scheduler role and the worker role of the connector.
// Plain values: the C++ engine hands them over in memory, others serialise them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hash/block.h"
#include "hash/key.h"

namespace newmoon {

using RequestId = std::string;

struct BlockRef {
  BlockHash hash;
  BlockId block = kNullBlock;
};

// Jobs carry their scope and epoch; a rank has no ambient scope (rule EXPLICIT).
struct LoadJob {
  std::uint64_t load_id = 0;  // unique in the engine's life (rule ONE-LOAD)
  RequestId request_id;
  Epoch epoch = 0;
  ScopeId scope;
  std::vector<BlockRef> blocks;  // destination, in prompt order
};
struct SaveJob {
  std::uint64_t job_id = 0;  // unique in the engine's life
  RequestId request_id;
  Epoch epoch = 0;
  ScopeId scope;
  std::vector<BlockRef> blocks;  // source, pinned until every rank reported (rule PIN)
};

// Goes to every rank with each step.
struct ConnectorMetadata {
  Epoch epoch = 0;  // raises the rank's floor (rule FLOOR)
  std::vector<LoadJob> loads;
  std::vector<SaveJob> saves;
  // Rule BIND, by rank: what the epoch is bound to (Fence::bound_writes()).
  std::vector<std::uint64_t> weight_writes{};
};

// A load ended on one rank, whatever happened. Failed blocks hold undefined bytes.
struct LoadReport {
  std::uint64_t load_id = 0;
  std::vector<BlockId> failed_blocks;
};
enum class SaveOutcome : std::uint8_t { kStored, kDropped, kFailed };
struct SaveReport {
  std::uint64_t job_id = 0;
  SaveOutcome outcome = SaveOutcome::kDropped;
};

// What one rank has to tell after a step. Every accepted or refused job is reported
// exactly once.
struct WorkerReport {
  std::size_t rank = 0;
  std::vector<LoadReport> loads;
  std::vector<SaveReport> saves;
  // Rule BIND: an epoch whose steps or jobs met weights other than those it is bound to.
  // The scheduler must fence.
  std::optional<Epoch> unbound_epoch;
  std::uint64_t weight_writes = 0;
  // In vLLM: named scopes of a step (StepMessage::tainted_scopes) in which this rank will put
  // nothing more, and that were emptied behind its last put.
  std::vector<ScopeId> emptied_scopes{};
};

}  // namespace newmoon
