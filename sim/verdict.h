// What a run found: violations of the contract, and how often each dangerous
// overlap happened. Shared by everything in one world; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/kernel.h"

namespace newmoon::sim {

// Overlaps that broke some earlier system or design. Each must occur in any 5,000
// seeds, else the simulation does not test what it says.
enum class Overlap : std::uint8_t {
  kPutAcrossFence,           // a store put began in one epoch and ended in another
  kLoadAcrossFence,          // so did a store get
  kLookupAcrossFence,        // so did a lookup's store access
  kStepAcrossFence,          // a step was scheduled before a fence and run after it
  kStepAcrossWrite,          // a step was scheduled before a weights write and run after it
  kLateRank,                 // a fence found one rank a step or more behind another
  kSplitWrite,               // a step was scheduled while only some ranks had new weights
  kResetThreeTimes,          // three resets with no request scheduled in between
  kKeepWithLoad,             // pause keep with a load in flight
  kAbortDuringLoad,          // a request was aborted while its load was in flight
  kFinishUnderSave,          // a request ended while saves of its blocks were outstanding
  kReuseAfterQueuedSave,     // such a block was written again once the save had ended
  kReuseAfterCancelledLoad,  // a block was written again after a cancelled load into it
  kFenceLost,                // a fence message to some rank was lost
  kAnswerLate,               // an answer reached the client after its deadline
  kAnswerTwice,              // an answer reached the client twice
  kRankCrash,                // a rank died
  kZombiePut,                // a put of a replica that was being restarted went on
  kPartialUpdate,            // an update failed on some rank only
  kUnequalWrites,            // a scope was opened for ranks that counted different writes
  kUpdateWithoutFinish,      // weights were written and nobody said that it was all
  kSleepLevel2,              // a level 2 sleep and its wake-up
  kSealedStep,               // a step ran while there was no scope
  kUnboundEpoch,             // a rank refused a job because its weights had moved (BIND)
  kScopeKept,                // a reset kept a verified scope
  kReturnHit,                // an external hit under weights that had been away
  kExternalHit,
  kReplicaHit,  // on blocks that the other replica had stored
  kLocalHit,
  kPreemption,
  kEviction,          // the store dropped values for want of room
  kCorruptValue,      // a value came back with changed bytes
  kMisdirectedValue,  // another key's value came back
  kMissingValue,      // a lookup promised a value and the get did not find it
  kUniquePurge,       // a unique scope was purged
  kRequestIdReuse,    // a request id was used again
  kDegradedReset,     // a reset answered without some rank
  kCount
};
inline constexpr std::size_t kOverlapCount = static_cast<std::size_t>(Overlap::kCount);
std::string_view to_string(Overlap overlap);

using OverlapCounts = std::array<std::uint64_t, kOverlapCount>;

class Verdict {
 public:
  explicit Verdict(Kernel& kernel) : kernel_(kernel) {}

  // `rule`: what of the contract it breaks, e.g. "W1 tokens".
  void violation(std::string_view rule, const std::string& what);
  const std::vector<std::string>& violations() const { return violations_; }

  void saw(Overlap overlap) { ++overlaps_[static_cast<std::size_t>(overlap)]; }
  void note_fault() { ++fault_count_; }
  std::uint64_t fault_count() const { return fault_count_; }
  const OverlapCounts& overlaps() const { return overlaps_; }

 private:
  Kernel& kernel_;
  std::vector<std::string> violations_;
  OverlapCounts overlaps_{};
  std::uint64_t fault_count_ = 0;
};

}  // namespace newmoon::sim
