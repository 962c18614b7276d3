// The fence: the switch of epoch and scope that makes a reset right in O(1).
//
// Fence is the scheduler's half: which scope requests may read and publish under
// now. EpochFloor is a rank's half: which jobs it still accepts. The rules they
// keep (SEAL, BIND, FLOOR, and W8's "what is right is kept") are those of
// docs/architecture.md; every one was model-checked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "hash/scope.h"

namespace newmoon {

// What an explicit reset did to the scope; `scope:` in every answer.
enum class ScopeOutcome : std::uint8_t {
  kKept,    // nothing ran since the last adopt, or the caller said keep_verified
  kNew,     // a unique scope: a cold external tier until the next adopt
  kSealed,  // weights are moving: there is no scope
};
std::string_view to_string(ScopeOutcome outcome);  // "kept", "new", "sealed"

// One thread (the engine's loop). No operation can fail, allocate by the number of
// blocks, or wait.
class Fence {
 public:
  // What the scope of this engine holds besides the weights.
  struct Identity {
    std::string name_space;
    std::string model;
    std::string layout;
    Incarnation incarnation;
  };
  // Starts sealed, at epoch 1: nobody has said which weights are loaded.
  explicit Fence(Identity identity);

  Epoch epoch() const { return epoch_; }
  bool sealed() const { return !scope_.has_value(); }
  // nullopt while sealed: requests run without the external tier.
  const std::optional<Scope>& scope() const { return scope_; }
  const std::optional<ScopeId>& scope_id() const { return scope_id_; }

  // Each returns the scope that was left, if any; rule PURGE lets the caller purge
  // it only if it is unique.
  std::optional<Scope> seal();
  // Opens the scope of these weights. A fence of its own: the epoch moves on.
  std::optional<Scope> adopt(const WeightsIdentity& weights);
  std::optional<Scope> adopt_unique();

  struct ResetResult {
    ScopeOutcome outcome = ScopeOutcome::kNew;
    std::optional<Scope> left;  // set if it is no longer the current one
  };
  // An explicit reset: always a new epoch, so the local cache is cold.
  ResetResult reset(bool keep_verified);

  // A request was scheduled under the current scope: the next reset is not a repeat.
  void note_scheduled() { scheduled_since_adopt_ = true; }

 private:
  std::optional<Scope> open(std::optional<Scope> next);

  const Identity identity_;
  Epoch epoch_ = 1;
  std::optional<Scope> scope_;
  std::optional<ScopeId> scope_id_;
  bool scheduled_since_adopt_ = false;
};

// Sticky. Not thread-safe by itself; StoreWorker guards it.
class EpochFloor {
 public:
  // A fence message or a step's metadata.
  void raise(Epoch epoch);
  // Somebody wrote weights on this rank: nothing stamped with an epoch seen so far
  // may be published or loaded any more.
  void note_weight_write();

  Epoch floor() const { return floor_; }
  std::uint64_t weight_writes() const { return weight_writes_; }

  enum class Admission : std::uint8_t { kAdmitted, kBelowFloor, kUnbound };
  // Whether a job of that epoch may go on. Binds the epoch to the weight writes so
  // far at its first use; kUnbound if they have changed since (rule BIND).
  Admission admit(Epoch epoch);

 private:
  Epoch floor_ = 0;
  Epoch seen_ = 0;  // highest epoch met
  std::uint64_t weight_writes_ = 0;
  std::map<Epoch, std::uint64_t> bound_writes_;  // epochs >= floor_ only
};

}  // namespace newmoon
