#include "connector/fence.h"

#include <algorithm>
#include <utility>

namespace newmoon {

std::string_view to_string(ScopeOutcome outcome) {
  switch (outcome) {
    case ScopeOutcome::kKept:
      return "kept";
    case ScopeOutcome::kNew:
      return "new";
    case ScopeOutcome::kSealed:
      return "sealed";
  }
  return "unknown";
}

Fence::Fence(Identity identity) : identity_(std::move(identity)) {}

// Rule SEAL: no scope, so nothing is looked up, loaded or saved until an adopt.
std::optional<Scope> Fence::seal() { return open(std::nullopt, {}); }

std::optional<Scope> Fence::adopt(const WeightsIdentity& weights,
                                  std::vector<std::uint64_t> weight_writes) {
  return open(scope_of(weights), std::move(weight_writes));
}

std::optional<Scope> Fence::adopt_unique(std::vector<std::uint64_t> weight_writes) {
  // The epoch that open() moves to: never used before in this incarnation, and the
  // incarnation is nobody else's.
  return adopt(UniqueIdentity{identity_.incarnation, epoch_ + 1}, std::move(weight_writes));
}

Fence::ResetResult Fence::reset(bool keep_verified) {
  if (sealed()) return {ScopeOutcome::kSealed, open(std::nullopt, {})};
  const bool verified = !scope_->is_unique();
  if (verified && (keep_verified || !scheduled_since_adopt_)) {
    ++epoch_;  // W8: what is right is kept; the epoch alone makes the local cache cold
    return {ScopeOutcome::kKept, std::nullopt};
  }
  return {ScopeOutcome::kNew, adopt_unique(bound_writes_)};  // of the same weights
}

Scope Fence::scope_of(const WeightsIdentity& weights) const {
  return {identity_.name_space, identity_.model, identity_.layout, weights};
}

std::optional<Scope> Fence::open(std::optional<Scope> next,
                                 std::vector<std::uint64_t> weight_writes) {
  const std::optional<ScopeId> next_id = next ? std::optional(next->id()) : std::nullopt;
  // Nothing throws from here on: who fails has not begun.
  bound_writes_ = std::move(weight_writes);
  ++epoch_;
  scheduled_since_adopt_ = false;
  scope_id_ = next_id;
  std::optional<Scope> left = std::exchange(scope_, std::move(next));
  if (left == scope_) left.reset();  // re-adopted: not left, nothing to purge
  return left;
}

void EpochFloor::raise(Epoch epoch) {
  heard_ = std::max(heard_, epoch);
  floor_ = std::max(floor_, heard_);
}

void EpochFloor::note_weight_write(Epoch sealed_epoch) {
  ++weight_writes_;
  floor_ = std::max(floor_, sealed_epoch);
  refuse_heard();
}

bool EpochFloor::bind(Epoch epoch, std::uint64_t weight_writes) {
  if (weight_writes == weight_writes_) return true;
  floor_ = std::max(floor_, epoch + 1);
  return false;
}

void EpochFloor::refuse_heard() { floor_ = std::max(floor_, heard_ + 1); }

EpochFloor::Admission EpochFloor::admit(Epoch epoch) {
  raise(epoch);
  if (epoch < heard_) return Admission::kBelowFloor;
  return epoch < floor_ ? Admission::kUnbound : Admission::kAdmitted;
}

}  // namespace newmoon
