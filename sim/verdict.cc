#include "sim/verdict.h"

namespace newmoon::sim {
namespace {

constexpr std::array<std::string_view, kOverlapCount> kNames = {
    "put_across_fence",
    "load_across_fence",
    "lookup_across_fence",
    "step_across_fence",
    "step_across_write",
    "late_rank",
    "split_write",
    "reset_three_times",
    "keep_with_load",
    "abort_during_load",
    "finish_under_save",
    "reuse_after_queued_save",
    "reuse_after_cancelled_load",
    "fence_lost",
    "answer_late",
    "answer_twice",
    "rank_crash",
    "zombie_put",
    "partial_update",
    "unequal_writes",
    "update_without_finish",
    "sleep_level_2",
    "sealed_step",
    "unbound_epoch",
    "scope_kept",
    "return_hit",
    "external_hit",
    "replica_hit",
    "local_hit",
    "preemption",
    "eviction",
    "corrupt_value",
    "misdirected_value",
    "missing_value",
    "unique_purge",
    "request_id_reuse",
    "degraded_reset",
};

// Enough to see what went wrong; one stale block can spoil every later token.
constexpr std::size_t kViolationsMax = 20;

}  // namespace

std::string_view to_string(Overlap overlap) { return kNames[static_cast<std::size_t>(overlap)]; }

void Verdict::violation(std::string_view rule, const std::string& what) {
  kernel_.trace("VIOLATION", {violations_.size()});
  if (violations_.size() >= kViolationsMax) return;
  violations_.push_back("[" + std::to_string(to_ms(kernel_.now())) + " ms] " + std::string(rule) +
                        ": " + what);
}

}  // namespace newmoon::sim
