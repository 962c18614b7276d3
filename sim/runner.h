// Runs seeds and adds up what they found.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/verdict.h"

namespace newmoon::sim {

struct SeedResult {
  std::uint64_t seed = 0;
  std::uint64_t events = 0;
  std::uint64_t requests = 0;
  std::uint64_t updates = 0;
  std::uint64_t faults = 0;
  std::uint64_t history_hash = 0;  // of all that happened
  std::vector<std::string> violations;
  OverlapCounts overlaps{};
};

inline constexpr std::uint64_t kCoverageSeeds = 5000;

struct SimReport {
  std::uint64_t seeds = 0;
  std::uint64_t events = 0;
  std::uint64_t violations = 0;  // seeds with one
  OverlapCounts overlaps{};
  std::uint64_t end_hash = 0;      // XOR over the seeds: independent of threads
  std::vector<SeedResult> failed;  // by seed; the first few
  // What never happened, though the report covers kCoverageSeeds or more: what the
  // simulator says it tests, it must meet.
  std::vector<Overlap> missing_overlaps() const;
  // {"seeds", "events", "violations", "coverage": {name: count}, "end_hash"}, one line.
  std::string to_json() const;
};

// The seed that runs on this thread; 0: none. For whoever reports a crash.
std::uint64_t running_seed();

// Any thread; a run shares nothing with others. `trace`: told of every line of the
// run's history as it happens; may be null.
SeedResult run_seed(std::uint64_t seed, const std::function<void(const std::string&)>& trace);

struct RunOptions {
  std::uint64_t first = 1;
  std::uint64_t last = 1;  // inclusive
  int threads = 1;
  bool stop_at_violation = false;
  // Seeds done so far, now and then, from any of the threads.
  std::function<void(std::uint64_t done)> progress{};
};
SimReport run_seeds(const RunOptions& options);

}  // namespace newmoon::sim
