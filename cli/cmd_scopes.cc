// `newmoon scopes`: what a store holds, for which weights, and who uses it.
// `newmoon purge`: removes the scopes that nobody uses any more (rule PURGE).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "cli/commands.h"
#include "cli/scope_report.h"

namespace newmoon {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(200);

struct StoreCommandOptions {
  std::string store;
  double timeout_s = 5;
  bool json = false;
  std::shared_ptr<SelectionOptions> selection = std::make_shared<SelectionOptions>();
  double deadline_s = 60;
};

// An open store and what it needs to live.
struct OpenStore {
  SystemClock clock;
  ThreadExecutor executor{"nm-store"};
  std::unique_ptr<KvStore> store;
};

Result<std::unique_ptr<OpenStore>> open(const StoreCommandOptions& options) {
  auto open = std::make_unique<OpenStore>();
  const auto timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.timeout_s));
  auto store = open_shared_store(options.store, timeout, open->clock, open->executor);
  if (!store) return std::unexpected(store.error());
  open->store = std::move(*store);
  return open;
}

int run_scopes(const StoreCommandOptions& options) {
  const auto open_store = open(options);
  if (!open_store) return report_failure("scopes", open_store.error());
  const Result<std::vector<ScopeUsage>> scopes = (*open_store)->store->list_scopes();
  if (!scopes) return report_failure("scopes", scopes.error());
  if (options.json) {
    // What is no UTF-8 in a description is replaced, not thrown about.
    std::printf(
        "%s\n",
        scopes_json(*scopes).dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    print_scopes(*scopes);
  }
  return 0;
}

std::uint64_t blocks_of(std::span<const ScopeUsage> scopes) {
  return std::accumulate(
      scopes.begin(), scopes.end(), std::uint64_t{0},
      [](std::uint64_t sum, const ScopeUsage& usage) { return sum + usage.blocks; });
}

// Until the store has given everything back. kMiss: it has not, at the deadline.
Status wait_for_purge(OpenStore& open, const ScopeSelection& selection, Time deadline) {
  std::uint64_t shown = ~std::uint64_t{0};
  while (true) {
    const Result<StoreStats> stats = open.store->stats();
    if (!stats) return std::unexpected(stats.error());
    std::uint64_t left = 0;
    if (stats->unfinished_purges == 0) {
      Result<std::vector<ScopeUsage>> listed = open.store->list_scopes();
      if (!listed) return std::unexpected(listed.error());
      left = blocks_of(select_scopes(std::move(*listed), selection));
      if (left == 0) return {};
    }
    if (open.clock.now() >= deadline) {
      return fail(Code::kMiss,
                  "not done at the deadline: " + std::to_string(stats->unfinished_purges) +
                      " purges unfinished, " + std::to_string(stats->bytes_to_free) +
                      " bytes to free, " + std::to_string(left) + " blocks put since");
    }
    if (std::exchange(shown, stats->bytes_to_free) != stats->bytes_to_free) {
      std::fprintf(stderr, "purging: %llu bytes to free\n",
                   static_cast<unsigned long long>(stats->bytes_to_free));
    }
    open.clock.sleep_until(open.clock.now() + kPollInterval);
  }
}

Status purge(OpenStore& open, const StoreCommandOptions& options) {
  const Result<ScopeSelection> selection = to_selection(*options.selection);
  if (!selection) return std::unexpected(selection.error());
  auto scopes = scopes_to_purge(*open.store, *selection);
  if (!scopes) return std::unexpected(scopes.error());
  if (Status wanted = confirm_purge(*scopes, options.selection->yes); !wanted) return wanted;
  // Somebody may have come to use it while the question stood.
  if (!options.selection->yes) scopes = scopes_to_purge(*open.store, *selection);
  if (!scopes) return std::unexpected(scopes.error());
  const Time start = open.clock.now();
  for (const ScopeUsage& usage : *scopes) {
    // Not for good: somebody may return to a named scope.
    if (Status purged = open.store->purge_scope(usage.scope, false); !purged) return purged;
  }
  const auto patience =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.deadline_s));
  if (Status done = wait_for_purge(open, *selection, start + patience); !done) return done;
  std::printf("purged %zu scopes, %llu blocks, in %.1f s\n", scopes->size(),
              static_cast<unsigned long long>(blocks_of(*scopes)),
              to_ms(open.clock.now() - start) / 1000);
  return {};
}

int run_purge(const StoreCommandOptions& options) {
  // Before the store is asked, which may take its time.
  if (const auto selection = to_selection(*options.selection); !selection) {
    return report_failure("purge", selection.error());
  }
  const auto open_store = open(options);
  if (!open_store) return report_failure("purge", open_store.error());
  const Status purged = purge(**open_store, options);
  return purged ? 0 : report_failure("purge", purged.error());
}

void add_store_options(CLI::App& command, const std::shared_ptr<StoreCommandOptions>& options) {
  command.add_option("--store", options->store, "ipc://PATH or mooncake://HOST:PORT")->required();
  command.add_option("--timeout-s", options->timeout_s, "of one call to the store")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
}

}  // namespace

void add_scopes_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<StoreCommandOptions>();
  CLI::App* command =
      app.add_subcommand("scopes", "List what a store holds: scopes, blocks, bytes, users");
  add_store_options(*command, options);
  command->add_flag("--json", options->json, "one JSON document instead of a table");
  command->callback([options, &exit_code] { exit_code = run_scopes(*options); });
}

void add_purge_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<StoreCommandOptions>();
  CLI::App* command = app.add_subcommand("purge", "Remove scopes that nobody uses from a store");
  add_store_options(*command, options);
  add_selection_options(*command, options->selection);
  command->add_option("--deadline-s", options->deadline_s, "how long to wait until all is gone")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run_purge(*options); });
}

}  // namespace newmoon
