// The bytes in which the connector's values pass between vLLM's processes: what the
// scheduler tells every rank with a step, and what a rank reports after it. Both ends are
// of one installation, so there is a version byte and no other compatibility. Byte tables
// in docs/formats.md.
//
// Pure functions. Decoding never reads beyond its bytes and allocates no more than they
// can hold, whatever they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "connector/metadata.h"

namespace newmoon {

struct StepMessage {
  ConnectorMetadata metadata;
  // Unique scopes that were left: each rank purges them in its store (rule PURGE).
  std::vector<ScopeId> left_scopes;
  // Named scopes that hold KV of other weights than those of their name: each rank removes what
  // is in them. They may be opened again.
  std::vector<ScopeId> tainted_scopes{};
  // With the first step of an epoch: what is open now, for the store to be told that it is
  // used (connector/scope_hold.h).
  struct OpenScope {
    std::optional<ScopeId> id;  // nullopt: sealed
    std::string description;
    friend bool operator==(const OpenScope&, const OpenScope&) = default;
  };
  std::optional<OpenScope> open_scope{};
};

Bytes encode_step(const StepMessage& step);
// kBadRequest: not what encode_step() makes; says where.
Result<StepMessage> decode_step(ByteView bytes);

Bytes encode_report(const WorkerReport& report);
// kBadRequest: not what encode_report() makes; says where.
Result<WorkerReport> decode_report(ByteView bytes);

}  // namespace newmoon
