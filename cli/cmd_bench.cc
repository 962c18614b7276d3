#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/bench_hash.h"
#include "cli/bench_lookup.h"
#include "cli/bench_mooncake.h"
#include "cli/bench_purge.h"
#include "cli/bench_reset.h"
#include "cli/bench_store.h"
#include "cli/commands.h"
#include "cli/model_files.h"
#include "cli/option_checks.h"
#ifdef NEWMOON_LLAMA
#include "cli/bench_external.h"
#include "cli/bench_model.h"
#endif

namespace newmoon {
namespace {

using Json = nlohmann::json;

// What a figure should be, and is.
struct Target {
  std::string name;
  std::string wanted;
  double seen = 0;
  bool met = false;
};
Target at_most(std::string name, double limit, double seen) {
  return {std::move(name), "<= " + Json(limit).dump(), seen, seen <= limit};
}
Target at_least(std::string name, double limit, double seen) {
  return {std::move(name), ">= " + Json(limit).dump(), seen, seen >= limit};
}

struct BenchResult {
  Json rows = Json::array();
  std::vector<Target> targets;
};

struct BenchOptions {
  std::string json_path;
  bool check = false;
  std::vector<std::uint64_t> keys = {1000, 100'000, 10'000'000};
  std::uint64_t purged_keys = 100'000;
  std::vector<int> blocks = {64, 1024, 8192};
  std::string model = default_model_files().base;
  std::string store = "mooncake";
  int runs = 101;
  std::vector<std::uint64_t> mooncake_keys = {1000, 10'000, 100'000};
};

// Upstream's client and server on its store, ms (docs/verification.md says how seen).
std::optional<double> upstream_lookup_ms(int blocks) {
  switch (blocks) {
    case 64:
      return 0.55;
    case 1024:
      return 3.73;
    case 8192:
      return 31.65;
    default:
      return std::nullopt;
  }
}
constexpr std::size_t kMooncakeValueBytes[] = {64 << 10, 360 << 10, 2 << 20};
constexpr std::size_t kMooncakeBatches[] = {8, 64};
constexpr double kUpstreamHashMs[] = {2.86, 5.29};  // sha256, sha256_cbor; 32,768 tokens

Result<BenchResult> run_reset(const BenchOptions& options) {
  const Result<std::vector<ResetBenchRow>> rows = bench_reset(options.keys);
  if (!rows) return std::unexpected(rows.error());
  BenchResult result;
  double smallest = rows->front().reset_ack_p50_us;
  double largest = smallest;
  for (const ResetBenchRow& row : *rows) {
    result.rows.push_back({{"keys", row.keys},
                           {"reset_ack_p50_us", row.reset_ack_p50_us},
                           {"reset_ack_p99_us", row.reset_ack_p99_us},
                           {"reset_ack_first_us_max", row.reset_ack_first_us_max},
                           {"lookup_p99_idle_us", row.lookup_p99_idle_us},
                           {"lookup_p99_during_free_ratio", row.lookup_p99_during_free_ratio},
                           {"resident_gib", row.resident_gib},
                           {"samples", row.samples}});
    const std::string at = " at " + std::to_string(row.keys) + " keys";
    smallest = std::min(smallest, row.reset_ack_p50_us);
    largest = std::max(largest, row.reset_ack_p50_us);
    result.targets.push_back(at_most("reset ack p50, us" + at, 1000, row.reset_ack_p50_us));
    result.targets.push_back(
        at_most("lookup p99 during frees / idle" + at, 2, row.lookup_p99_during_free_ratio));
    result.targets.push_back(at_most("resident GiB" + at, 8, row.resident_gib));
  }
  result.targets.push_back(at_most("largest / smallest reset ack p50", 2, largest / smallest));
  return result;
}

Result<BenchResult> run_purge(const BenchOptions& options) {
  const Result<PurgeBenchRow> row = bench_purge(options.store, options.purged_keys);
  if (!row) return std::unexpected(row.error());
  BenchResult result;
  result.rows.push_back({{"keys", row->keys},
                         {"lookup_p50_idle_us", row->lookup_p50_idle_us},
                         {"lookup_p99_idle_us", row->lookup_p99_idle_us},
                         {"lookup_p50_during_us", row->lookup_p50_during_us},
                         {"lookup_p99_during_us", row->lookup_p99_during_us},
                         {"lookup_p99_ratio", row->lookup_p99_ratio},
                         {"lookup_max_idle_us", row->lookup_max_idle_us},
                         {"lookup_max_during_us", row->lookup_max_during_us},
                         {"purge_ms", row->purge_ms},
                         {"samples_idle", row->samples_idle},
                         {"samples_during", row->samples_during}});
  return result;
}

Result<BenchResult> run_lookup(const BenchOptions& options) {
  const Result<std::vector<LookupBenchRow>> rows = bench_lookup(options.blocks);
  if (!rows) return std::unexpected(rows.error());
  BenchResult result;
  for (const LookupBenchRow& row : *rows) {
    result.rows.push_back({{"blocks", row.blocks},
                           {"case", row.case_name},
                           {"p50_us", row.p50_us},
                           {"p99_us", row.p99_us}});
    if (row.blocks != 8192) continue;
    result.targets.push_back(at_least("times upstream at 8192 blocks, " + row.case_name, 20,
                                      *upstream_lookup_ms(8192) * 1000 / row.p50_us));
  }
  return result;
}

Result<BenchResult> run_store(const BenchOptions&) {
  BenchResult result;
  for (const StoreBenchRow& row : bench_store()) {
    result.rows.push_back({{"bytes", row.bytes},
                           {"op", row.op},
                           {"checksum", row.checksum},
                           {"gb_per_s", row.gb_per_s},
                           {"limit_gb_per_s", row.limit_gb_per_s},
                           {"ratio", row.ratio}});
    if (row.bytes < 360 * 1024) continue;
    const std::string name = row.op + " " + std::to_string(row.bytes) + " bytes" +
                             (row.checksum ? " with checksum" : "") + " / limit";
    result.targets.push_back(at_least(name, 0.9, row.ratio));
  }
  return result;
}

Result<BenchResult> run_hash(const BenchOptions&) {
  BenchResult result;
  for (const HashBenchRow& row : bench_hash()) {
    result.rows.push_back({{"algo", row.algo},
                           {"tokens", row.tokens},
                           {"ms", row.ms},
                           {"limit_ms", row.limit_ms},
                           {"ratio", row.ratio}});
    if (!row.algo.starts_with("sha256")) continue;
    result.targets.push_back(at_most(row.algo + " / bare SHA-256", 1.5, row.ratio));
    const double upstream_ms = kUpstreamHashMs[row.algo == "sha256_cbor" ? 1 : 0];
    result.targets.push_back(at_most(row.algo + ", ms (upstream's)", upstream_ms, row.ms));
  }
  return result;
}

Status add_transfers(MooncakeBench& bench, int runs, BenchResult& result) {
  const auto rows = bench.transfers(kMooncakeValueBytes, kMooncakeBatches, runs);
  if (!rows) return std::unexpected(rows.error());
  for (const MooncakeTransferRow& row : *rows) {
    result.rows.push_back({{"case", row.op},
                           {"bytes", row.bytes},
                           {"batch", row.batch},
                           {"gb_per_s", row.gb_per_s},
                           {"wheel_gb_per_s", row.wheel_gb_per_s},
                           {"ratio", row.ratio}});
    // The others show what a look afterwards, a hash and a copy before cost (docs/architecture.md).
    if (row.bytes < 360 * 1024 || (row.op != "put" && row.op != "get")) continue;
    const std::string name =
        row.op + " " + std::to_string(row.batch) + " x " + std::to_string(row.bytes) + " bytes";
    result.targets.push_back(at_least(name + " / wheel", 0.95, row.ratio));
  }
  return {};
}

Status add_lookups(MooncakeBench& bench, const std::vector<int>& blocks, BenchResult& result) {
  const auto trips = bench.round_trips(blocks);
  if (!trips) return std::unexpected(trips.error());
  const auto rows = bench.lookups(blocks);
  if (!rows) return std::unexpected(rows.error());
  for (const MooncakeLookupRow& row : *rows) {
    result.rows.push_back({{"case", "lookup_" + row.case_name},
                           {"blocks", row.blocks},
                           {"us", row.us},
                           {"bare_us", row.bare_us},
                           {"ratio", row.ratio}});
    const std::string name = "lookup " + std::to_string(row.blocks) + " blocks, " + row.case_name;
    if (row.blocks >= 1024) result.targets.push_back(at_most(name + " / bare", 1.15, row.ratio));
  }
  for (const LookupBenchRow& row : *trips) {
    result.rows.push_back({{"case", "round_trip_" + row.case_name},
                           {"blocks", row.blocks},
                           {"p50_us", row.p50_us},
                           {"p99_us", row.p99_us}});
    const std::optional<double> upstream_ms = upstream_lookup_ms(row.blocks);
    if (!upstream_ms) continue;
    const std::string name = std::to_string(row.blocks) + ", " + row.case_name;
    result.targets.push_back(
        at_least("times upstream's round trip at " + name, 1, *upstream_ms * 1000 / row.p50_us));
  }
  return {};
}

Status add_resets(MooncakeBench& bench, const std::vector<std::uint64_t>& keys,
                  BenchResult& result) {
  const auto rows = bench.resets(keys);
  if (!rows) return std::unexpected(rows.error());
  double smallest = rows->front().reset_ack_p50_us;
  double largest = smallest;
  for (const MooncakeResetRow& row : *rows) {
    result.rows.push_back({{"case", "reset"},
                           {"keys", row.keys},
                           {"reset_ack_p50_us", row.reset_ack_p50_us},
                           {"reset_ack_first_us", row.reset_ack_first_us},
                           {"remove_all_us", row.remove_all_us}});
    smallest = std::min(smallest, row.reset_ack_p50_us);
    largest = std::max(largest, row.reset_ack_p50_us);
  }
  result.targets.push_back(at_most("largest / smallest reset ack p50", 2, largest / smallest));
  return {};
}

Result<BenchResult> run_mooncake(const BenchOptions& options) {
  const auto bench = MooncakeBench::open(options.store);
  if (!bench) return std::unexpected(bench.error());
  BenchResult result;
  for (const Status& added :
       {add_transfers(**bench, options.runs, result), add_lookups(**bench, options.blocks, result),
        add_resets(**bench, options.mooncake_keys, result)}) {
    if (!added) return std::unexpected(added.error());
  }
  return result;
}

#ifdef NEWMOON_LLAMA
Result<BenchResult> run_model(const BenchOptions& options) {
  ModelBenchOptions model;
  model.model_path = options.model;
  Result<std::vector<ModelBenchRow>> rows = bench_model(model);
  if (!rows) return std::unexpected(rows.error());
  Result<ModelBenchRow> external = bench_external_hit(model);
  if (!external) return std::unexpected(external.error());
  rows->push_back(std::move(*external));
  BenchResult result;
  for (const ModelBenchRow& row : *rows) {
    result.rows.push_back(
        {{"case", row.case_name}, {"value", row.value}, {"peer", row.peer}, {"ratio", row.ratio}});
    if (row.case_name.starts_with("first_token")) {
      result.targets.push_back(at_least(row.case_name + ", times", 30, row.ratio));
    } else if (row.case_name.starts_with("generate")) {
      result.targets.push_back(at_least(row.case_name + " / llama.cpp", 0.95, row.ratio));
    } else {
      result.targets.push_back(at_most(row.case_name + ", MB over", 200, row.ratio));
    }
  }
  return result;
}
#endif

int report_error(const std::string& bench, const Error& error) {
  std::fprintf(stderr, "newmoon bench %s: %s\n", bench.c_str(), error.message.c_str());
  return 2;
}

int report(const std::string& bench, const BenchOptions& options, const BenchResult& result) {
  for (const Json& row : result.rows) std::printf("%s\n", row.dump().c_str());
  bool all_met = true;
  for (const Target& target : result.targets) {
    all_met &= target.met;
    std::printf("%-52s target %-9s seen %-10.4g %s\n", target.name.c_str(), target.wanted.c_str(),
                target.seen, target.met ? "met" : "MISSED");
  }
  if (!options.json_path.empty()) {
    std::ofstream file(options.json_path);
    file << Json{{"bench", bench}, {"rows", result.rows}}.dump(2) << "\n";
    if (!file.flush()) {
      return report_error(bench, {Code::kUnavailable, "cannot write " + options.json_path});
    }
  }
  return options.check && !all_met ? 1 : 0;
}

using BenchFn = Result<BenchResult> (*)(const BenchOptions&);

CLI::App* add_bench(CLI::App& parent, const std::string& name, const std::string& what, BenchFn run,
                    const std::shared_ptr<BenchOptions>& options, int& exit_code) {
  CLI::App* command = parent.add_subcommand(name, what);
  command->add_option("--json", options->json_path, "write the rows here")
      ->check(check_output_path);
  command->add_flag("--check", options->check, "exit 1 if a target is missed");
  command->callback([name, run, options, &exit_code] {
    const Result<BenchResult> result = run(*options);
    exit_code = result ? report(name, *options, *result) : report_error(name, result.error());
  });
  return command;
}

template <class Number>
void add_list(CLI::App& command, const std::string& name, const std::string& what,
              const std::shared_ptr<BenchOptions>& options,
              std::vector<Number> BenchOptions::* list, std::uint64_t most) {
  command.add_option_function<std::string>(
      name,
      [name, options, list, most](const std::string& text) {
        const Result<std::vector<std::uint64_t>> numbers = parse_number_list(text, most);
        if (!numbers) throw CLI::ValidationError(name, numbers.error().message);
        ((*options).*list).assign(numbers->begin(), numbers->end());
      },
      what + ", between commas");
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "Figures beside a peer or the hardware's limit");
  bench->require_subcommand(1);
  auto options = std::make_shared<BenchOptions>();
  add_list(
      *add_bench(*bench, "reset", "Reset ack by number of keys", run_reset, options, exit_code),
      "--keys", "keys stored", options, &BenchOptions::keys, 50'000'000);
  CLI::App* purge =
      add_bench(*bench, "purge", "Lookups while a scope is purged", run_purge, options, exit_code);
  purge->add_option("--store", options->store,
                    "mooncake (with a master of its own), mooncake://HOST:PORT or ipc://PATH");
  purge->add_option("--keys", options->purged_keys, "keys purged")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  add_list(
      *add_bench(*bench, "lookup", "Lookup round trip over ipc", run_lookup, options, exit_code),
      "--blocks", "blocks asked for", options, &BenchOptions::blocks, 1'000'000);
  add_bench(*bench, "store", "Memory store beside memcpy", run_store, options, exit_code);
  CLI::App* mooncake = add_bench(*bench, "mooncake", "Our layer beside Mooncake's own calls",
                                 run_mooncake, options, exit_code);
  mooncake->add_option("--store", options->store,
                       "mooncake (with a master of its own) or mooncake://HOST:PORT, a store to "
                       "be emptied");
  mooncake->add_option("--runs", options->runs, "of each put and get, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_list(*mooncake, "--blocks", "blocks asked for", options, &BenchOptions::blocks, 1'000'000);
  add_list(*mooncake, "--keys", "keys stored at a reset", options, &BenchOptions::mooncake_keys,
           1'000'000);
  add_bench(*bench, "hash", "Block hashes beside the bare hash", run_hash, options, exit_code);
#ifdef NEWMOON_LLAMA
  add_bench(*bench, "model", "The runner beside llama.cpp alone", run_model, options, exit_code)
      ->add_option("--model", options->model, "GGUF");
#endif
}

}  // namespace newmoon
