#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "sim/runner.h"

namespace newmoon {
namespace {

struct SimFlags {
  std::string seeds = "1..200";
  std::uint64_t seed = 0;
  bool trace = false;
  bool until_violation = false;
  int threads = 2;
  std::string json;
};

struct SeedRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "A..B", both inclusive.
std::optional<SeedRange> parse_range(std::string_view text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const auto first = parse_number(text.substr(0, dots));
  const auto last = parse_number(text.substr(dots + 2));
  if (!first || !last || *first > *last) return std::nullopt;
  return SeedRange{*first, *last};
}

void print_failure(const sim::SeedResult& result) {
  std::printf("seed %llu violates the contract:\n", static_cast<unsigned long long>(result.seed));
  for (const std::string& violation : result.violations) std::printf("  %s\n", violation.c_str());
  std::printf("rerun: newmoon sim --seed %llu --trace\n",
              static_cast<unsigned long long>(result.seed));
}

// The history of one seed, and its verdict.
bool replay(std::uint64_t seed, bool trace) {
  const auto print = [](const std::string& line) { std::puts(line.c_str()); };
  const sim::SeedResult result =
      sim::run_seed(seed, trace ? print : std::function<void(const std::string&)>());
  if (!result.violations.empty()) print_failure(result);
  std::printf("seed %llu: %llu events, %llu requests, %llu updates, %llu faults, history %016llx\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(result.events),
              static_cast<unsigned long long>(result.requests),
              static_cast<unsigned long long>(result.updates),
              static_cast<unsigned long long>(result.faults),
              static_cast<unsigned long long>(result.history_hash));
  return result.violations.empty();
}

// A crash of the code under test names its seed; then it goes its way.
void name_seed_of_crash(int signal) {
  char line[80];
  const int length =
      std::snprintf(line, sizeof line, "\nnewmoon sim: crashed; rerun: newmoon sim --seed %llu\n",
                    static_cast<unsigned long long>(sim::running_seed()));
  if (write(STDERR_FILENO, line, static_cast<std::size_t>(length)) < 0) _exit(2);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

sim::SimReport run(const SimFlags& flags, const SeedRange& range) {
  const std::uint64_t count = range.last - range.first + 1;
  std::printf("seeds %llu..%llu\n", static_cast<unsigned long long>(range.first),
              static_cast<unsigned long long>(range.last));
  std::fflush(stdout);
  const bool on_terminal = isatty(STDERR_FILENO) != 0;
  sim::RunOptions options{.first = range.first,
                          .last = range.last,
                          .threads = flags.threads,
                          .stop_at_violation = flags.until_violation,
                          .progress = {}};
  if (on_terminal) {
    options.progress = [count](std::uint64_t done) {
      std::fprintf(stderr, "\r%llu of %llu seeds", static_cast<unsigned long long>(done),
                   static_cast<unsigned long long>(count));
    };
  }
  sim::SimReport report = sim::run_seeds(options);
  if (on_terminal) std::fprintf(stderr, "\r                                        \r");
  return report;
}

int run_command(const SimFlags& flags, const std::optional<SeedRange>& range) {
  // What the world does to itself on purpose would fill the screen.
  for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, name_seed_of_crash);
  if (!flags.trace) set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  if (!range) return replay(flags.seed, flags.trace) ? 0 : 1;
  const sim::SimReport report = run(flags, *range);
  for (const sim::SeedResult& failed : report.failed) print_failure(failed);
  // A run that may stop early is not one to be covered.
  const std::vector<sim::Overlap> missing =
      flags.until_violation ? std::vector<sim::Overlap>{} : report.missing_overlaps();
  for (const sim::Overlap overlap : missing) {
    std::printf("never covered: %s\n", std::string(to_string(overlap)).c_str());
  }
  const std::string json = report.to_json();
  std::puts(json.c_str());
  if (!flags.json.empty() && !(std::ofstream(flags.json) << json << '\n')) {
    std::fprintf(stderr, "newmoon sim: cannot write %s; give --json a writable path\n",
                 flags.json.c_str());
    return 2;
  }
  return report.violations == 0 && missing.empty() ? 0 : 1;
}

}  // namespace

void add_sim_command(CLI::App& app, int& exit_code) {
  const auto flags = std::make_shared<SimFlags>();
  CLI::App* const command = app.add_subcommand("sim", "Run the deterministic simulator over seeds");
  CLI::Option* const seeds =
      command->add_option("--seeds", flags->seeds, "seeds A..B, both inclusive")
          ->capture_default_str()
          ->check([](const std::string& text) {
            return parse_range(text) ? std::string() : "must be A..B, with A <= B";
          });
  CLI::Option* const seed = command->add_option("--seed", flags->seed, "replay this one seed")
                                ->check(check_uint64)
                                ->excludes(seeds);
  command->add_flag("--trace", flags->trace, "print the history of --seed")->needs(seed);
  command->add_flag("--until-violation", flags->until_violation, "stop at the first violation");
  command->add_option("--threads", flags->threads, "seeds that run at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  command->add_option("--json", flags->json, "write the report to this file")
      ->check(check_output_path)
      ->excludes(seed);
  command->callback([flags, seed, &exit_code] {
    exit_code = run_command(*flags, seed->count() > 0 ? std::nullopt : parse_range(flags->seeds));
  });
}

}  // namespace newmoon
