// The fence: the switch of epoch and scope that makes a reset right in O(1).
//
// Fence is the scheduler's half: which scope requests may read and publish under
// now. EpochFloor is a rank's half: which jobs it still accepts. The rules they
// keep (SEAL, BIND, FLOOR, PURGE, and W8's "what is right is kept") are those of
// docs/architecture.md; verify/fence.pml is the model that was checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
// blocks, or wait (rule FIRST: a fence is step 0 of whatever needs one).
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
  // Rule BIND: the weight writes that each rank had counted when the weights of the
  // scope were identified, or a sealed epoch was bound. Empty: unknown.
  const std::vector<std::uint64_t>& bound_writes() const { return bound_writes_; }
  // Rule BIND, before the first step of a sealed epoch: the engine's own cache is in use all
  // the same. REQUIRES: sealed().
  void bind(std::vector<std::uint64_t> weight_writes) { bound_writes_ = std::move(weight_writes); }

  // Each of the following moves the epoch on by one and returns the scope that was
  // left, if any. Rule PURGE (PUNIQ in the model): the caller may purge it only if
  // it is unique; others may be reading a named one, and it may be returned to. (What is known to
  // be wrong in a named one is removed all the same: python/native/scheduler_role.h.)

  // Rule SEAL: before weights can be written.
  std::optional<Scope> seal();
  // Opens the scope of these weights, once every rank has them. `weight_writes`: see
  // bound_writes().
  std::optional<Scope> adopt(const WeightsIdentity& weights,
                             std::vector<std::uint64_t> weight_writes = {});
  // Opens a scope that nobody else has or can return to.
  std::optional<Scope> adopt_unique(std::vector<std::uint64_t> weight_writes = {});

  struct ResetResult {
    ScopeOutcome outcome = ScopeOutcome::kNew;
    std::optional<Scope> left;  // set if it is no longer the current one
  };
  // An explicit reset: always a new epoch, so the local cache is cold. The external
  // tier (contract W8):
  //   sealed         stays sealed
  //   named scope    kept, if nothing was scheduled since the adopt (a caller that
  //                  resets once more after loading) or `keep_verified`; else a unique
  //                  scope, cold, until the next adopt
  //   unique scope   another unique one: nothing verified it, so nothing is kept
  ResetResult reset(bool keep_verified);

  // A request was scheduled under the current scope: the next reset is not a repeat.
  void note_scheduled() { scheduled_since_adopt_ = true; }

 private:
  Scope scope_of(const WeightsIdentity& weights) const;
  std::optional<Scope> open(std::optional<Scope> next, std::vector<std::uint64_t> weight_writes);

  const Identity identity_;
  Epoch epoch_ = 1;
  std::optional<Scope> scope_;
  std::optional<ScopeId> scope_id_;
  std::vector<std::uint64_t> bound_writes_;
  bool scheduled_since_adopt_ = false;
};

// Sticky, and of constant size. Not thread-safe by itself; StoreWorker guards it.
//
// Rule BIND says that an epoch binds to a count of weight writes and that a job bound
// to another count is refused. Every epoch heard of so far was bound to an older count
// than the one after a write, so the rule needs no table of counts: a write moves the
// floor past all epochs heard of. An epoch heard of later says itself which count it is
// bound to (bind()), since a write that nobody announced may lie between the moment
// its weights were identified and its first use here.
class EpochFloor {
 public:
  // A fence message, a step's metadata or a job: the scheduler has reached `epoch`.
  void raise(Epoch epoch);
  // Somebody wrote weights on this rank: nothing of an epoch heard of so far may be
  // published or loaded any more. `sealed_epoch`: the epoch that the writer's engine
  // sealed to; 0 if it knows of no engine. Without it a write that overtakes a step on
  // its way to the rank lets that step publish, for its epoch has not been heard of if
  // the fence messages were lost (verify/fence.pml finds this with -DHEARD).
  void note_weight_write(Epoch sealed_epoch);
  // The weights of `epoch` were identified when this rank had counted `weight_writes`.
  // False: they are not those here, and the epoch is refused.
  bool bind(Epoch epoch, std::uint64_t weight_writes);
  // A peer that knows no epochs wants all that was computed so far forgotten.
  void refuse_heard();

  Epoch heard() const { return heard_; }
  Epoch floor() const { return floor_; }
  std::uint64_t weight_writes() const { return weight_writes_; }

  // kBelowFloor: the scheduler has moved on itself. kUnbound: it may not know that
  // its epoch is over, and must be told (rule BIND).
  enum class Admission : std::uint8_t { kAdmitted, kBelowFloor, kUnbound };
  // Whether a job of that epoch may go on (rule FLOOR).
  Admission admit(Epoch epoch);

 private:
  Epoch heard_ = 0;  // highest epoch the scheduler is known to have reached
  Epoch floor_ = 0;  // >= heard_
  std::uint64_t weight_writes_ = 0;
};

}  // namespace newmoon
