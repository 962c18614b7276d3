#include "sim/runner.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/executor.h"
#include "sim/world.h"

namespace newmoon::sim {
namespace {

constexpr std::size_t kFailedMax = 10;
constexpr std::uint64_t kProgressEvery = 100;

std::string hex64(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string line_of(Time now, std::string_view what,
                    std::initializer_list<std::uint64_t> arguments) {
  char at[32];
  std::snprintf(at, sizeof at, "%12.6f ms  ", to_ms(now));
  std::string line = at + std::string(what);
  for (const std::uint64_t argument : arguments) {
    // Hashes and weights are told apart by their first digits; the rest are counts.
    line += argument >= (std::uint64_t{1} << 40) ? " #" + hex64(argument).substr(0, 6)
                                                 : " " + std::to_string(argument);
  }
  return line;
}

thread_local std::uint64_t seed_of_thread = 0;

SeedResult run_with(std::uint64_t seed, FiberPool& fibers, TraceSink trace) {
  seed_of_thread = seed;
  World world(draw_plan(seed), fibers, std::move(trace));
  SeedResult result = world.run();
  seed_of_thread = 0;
  return result;
}

class Collector {
 public:
  explicit Collector(const RunOptions& options) : options_(options), next_(options.first) {}

  void work() {
    FiberPool fibers;
    SimReport mine;
    while (!stop_) {
      const std::uint64_t seed = next_++;
      if (seed > options_.last) break;
      add(mine, run_with(seed, fibers, nullptr));
      const std::uint64_t done = ++done_;
      if (options_.progress && done % kProgressEvery == 0) options_.progress(done);
    }
    merge(mine);
  }

  SimReport take() {
    std::ranges::sort(report_.failed, {}, &SeedResult::seed);
    if (report_.failed.size() > kFailedMax) report_.failed.resize(kFailedMax);
    return std::move(report_);
  }

 private:
  void add(SimReport& report, SeedResult result) {
    ++report.seeds;
    report.events += result.events;
    report.end_hash ^= result.history_hash;
    for (std::size_t i = 0; i < kOverlapCount; ++i) report.overlaps[i] += result.overlaps[i];
    if (result.violations.empty()) return;
    ++report.violations;
    if (options_.stop_at_violation) stop_ = true;
    if (report.failed.size() < kFailedMax) report.failed.push_back(std::move(result));
  }

  void merge(SimReport& mine) {
    std::lock_guard lock(mutex_);
    report_.seeds += mine.seeds;
    report_.events += mine.events;
    report_.violations += mine.violations;
    report_.end_hash ^= mine.end_hash;
    for (std::size_t i = 0; i < kOverlapCount; ++i) report_.overlaps[i] += mine.overlaps[i];
    std::ranges::move(mine.failed, std::back_inserter(report_.failed));
  }

  const RunOptions& options_;
  std::atomic<std::uint64_t> next_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  SimReport report_;
};

}  // namespace

std::vector<Overlap> SimReport::missing_overlaps() const {
  std::vector<Overlap> missing;
  for (std::size_t i = 0; i < kOverlapCount && seeds >= kCoverageSeeds; ++i) {
    if (overlaps[i] == 0) missing.push_back(static_cast<Overlap>(i));
  }
  return missing;
}

std::string SimReport::to_json() const {
  nlohmann::ordered_json coverage;
  for (std::size_t i = 0; i < kOverlapCount; ++i) {
    coverage[std::string(to_string(static_cast<Overlap>(i)))] = overlaps[i];
  }
  const nlohmann::ordered_json json = {{"seeds", seeds},
                                       {"events", events},
                                       {"violations", violations},
                                       {"coverage", coverage},
                                       {"end_hash", hex64(end_hash)}};
  return json.dump();
}

std::uint64_t running_seed() { return seed_of_thread; }

SeedResult run_seed(std::uint64_t seed, const std::function<void(const std::string&)>& trace) {
  FiberPool fibers;
  if (!trace) return run_with(seed, fibers, nullptr);
  return run_with(
      seed, fibers,
      [&trace](Time now, std::string_view what, std::initializer_list<std::uint64_t> arguments) {
        trace(line_of(now, what, arguments));
      });
}

SimReport run_seeds(const RunOptions& options) {
  Collector collector(options);
  std::vector<std::unique_ptr<ThreadExecutor>> helpers;
  for (int i = 1; i < options.threads; ++i) {
    helpers.push_back(std::make_unique<ThreadExecutor>("sim-" + std::to_string(i)));
    helpers.back()->post([&] { collector.work(); });
  }
  collector.work();
  helpers.clear();  // waits for them
  return collector.take();
}

}  // namespace newmoon::sim
