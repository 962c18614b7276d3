// `newmoon scopes`: what a store holds, for which weights, and who uses it.
// `newmoon purge`: removes the scopes that nobody uses any more (rule PURGE).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/shell_command.h"
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/scope_report.h"

namespace newmoon {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(200);
constexpr Duration kRecheckPollInterval = std::chrono::seconds(1);  // lists the store's keys

struct StoreCommandOptions {
  std::string store;
  double timeout_s = 5;
  bool json = false;
  std::shared_ptr<SelectionOptions> selection = std::make_shared<SelectionOptions>();
  double deadline_s = 60;
  bool wait = false;
};

// An open store and what it needs to live.
struct OpenStore {
  SystemClock clock;
  ThreadExecutor executor{"nm-store"};
  std::unique_ptr<KvStore> store;
};

std::string list_command(const StoreCommandOptions& options) {
  return shell_command({"newmoon", "scopes", "--store", options.store});
}

Duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Result<std::unique_ptr<OpenStore>> open(const StoreCommandOptions& options) {
  auto open = std::make_unique<OpenStore>();
  auto store =
      open_shared_store(options.store, seconds_of(options.timeout_s), open->clock, open->executor);
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

// What is there of the selection now. kBusy: somebody uses it again, and is not to lose what he
// puts from now on.
Result<std::uint64_t> blocks_left(OpenStore& open, const ScopeSelection& selection) {
  Result<std::vector<ScopeUsage>> listed = open.store->list_scopes();
  if (!listed) return std::unexpected(listed.error());
  const std::vector<ScopeUsage> scopes = select_scopes(std::move(*listed), selection);
  for (const ScopeUsage& usage : scopes) {
    if (usage.holders.empty()) continue;
    return fail(Code::kBusy, "purged, but not looked at again: scope " + usage.scope.hex() +
                                 " is in use again by " + usage.holders.front());
  }
  return blocks_of(scopes);
}

// Until the store has given everything back. kMiss: it has not, at the deadline.
Status wait_for_purge(OpenStore& open, const ScopeSelection& selection, Time deadline) {
  std::uint64_t shown = ~std::uint64_t{0};
  while (true) {
    const Result<StoreStats> stats = open.store->stats();
    if (!stats) return std::unexpected(stats.error());
    std::uint64_t left = 0;
    if (stats->unfinished_purges == 0) {
      const Result<std::uint64_t> blocks = blocks_left(open, selection);
      if (!blocks) return std::unexpected(blocks.error());
      left = *blocks;
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

// What somebody was writing during the purge is out of its reach until it is whole, or the
// master has given it up; the store looks again then. kMiss: it has not, so long after the time
// it needs for that.
Status wait_for_rechecks(OpenStore& open, const ScopeSelection& selection, Duration patience) {
  std::uint64_t shown = 0;
  Time deadline = Time::max();
  while (true) {
    const Result<StoreStats> stats = open.store->stats();
    if (!stats) return std::unexpected(stats.error());
    if (stats->owed_rechecks == 0) return {};
    const std::string left = std::to_string(stats->owed_rechecks) +
                             " scopes are to be looked at again, for what was half written";
    const Time now = open.clock.now();
    deadline = std::min(deadline, now + std::chrono::seconds(stats->recheck_left_s) + patience);
    if (now >= deadline) return fail(Code::kMiss, "not done at the deadline: " + left);
    if (const auto blocks = blocks_left(open, selection); !blocks) {
      return std::unexpected(blocks.error());
    }
    if (std::exchange(shown, stats->owed_rechecks) != stats->owed_rechecks) {
      std::fprintf(stderr, "purging: %s, %llu s from now\n", left.c_str(),
                   static_cast<unsigned long long>(stats->recheck_left_s));
    }
    open.clock.sleep_until(now + kRecheckPollInterval);
  }
}

// `wait`: also for what was being written.
Status finish_purge(OpenStore& open, const ScopeSelection& selection, bool wait,
                    Duration patience) {
  Status gone = wait_for_purge(open, selection, open.clock.now() + patience);
  if (!gone || !wait) return gone;
  if (Status looked = wait_for_rechecks(open, selection, patience); !looked) return looked;
  return wait_for_purge(open, selection, open.clock.now() + patience);
}

// What this process would have done, had it been told to wait.
Status report_rechecks(OpenStore& open, const StoreCommandOptions& options) {
  const Result<StoreStats> stats = open.store->stats();
  if (!stats) return std::unexpected(stats.error());
  if (stats->owed_rechecks == 0) return {};
  std::printf(
      "nothing is left that can be read; what a put under way still brings within %llu s, "
      "`%s` shows: purge it then, or at once with --wait\n",
      static_cast<unsigned long long>(stats->recheck_left_s), list_command(options).c_str());
  return {};
}

// What scopes_to_purge() says, and where to look.
Result<std::vector<ScopeUsage>> unused_scopes(OpenStore& open, const ScopeSelection& selection,
                                              const StoreCommandOptions& options) {
  auto scopes = scopes_to_purge(*open.store, selection);
  if (scopes || scopes.error().code != Code::kMiss) return scopes;
  return std::unexpected(not_there(selection, list_command(options)));
}

Status purge(OpenStore& open, const ScopeSelection& selection, const StoreCommandOptions& options) {
  auto scopes = unused_scopes(open, selection, options);
  if (!scopes) return std::unexpected(scopes.error());
  if (Status wanted = confirm_purge(*scopes, options.selection->yes); !wanted) return wanted;
  // Somebody may have come to use it while the question stood.
  if (!options.selection->yes) scopes = unused_scopes(open, selection, options);
  if (!scopes) return std::unexpected(scopes.error());
  const Time start = open.clock.now();
  for (const ScopeUsage& usage : *scopes) {
    // Not for good: somebody may return to a named scope.
    if (Status purged = open.store->purge_scope(usage.scope, false); !purged) return purged;
  }
  const Status done = finish_purge(open, selection, options.wait, seconds_of(options.deadline_s));
  if (!done) return done;
  std::printf("purged %zu scopes, %llu blocks, in %.1f s\n", scopes->size(),
              static_cast<unsigned long long>(blocks_of(*scopes)),
              to_ms(open.clock.now() - start) / 1000);
  return report_rechecks(open, options);
}

int run_purge(const StoreCommandOptions& options) {
  // Before the store is asked, which may take its time.
  const auto selection = to_selection(*options.selection, list_command(options));
  if (!selection) return report_failure("purge", selection.error());
  const auto open_store = open(options);
  if (!open_store) return report_failure("purge", open_store.error());
  const Status purged = purge(**open_store, *selection, options);
  return purged ? 0 : report_failure("purge", purged.error());
}

void add_store_options(CLI::App& command, const std::shared_ptr<StoreCommandOptions>& options) {
  command.add_option("--store", options->store, "ipc://PATH or mooncake://HOST:PORT")->required();
  command.add_option("--timeout-s", options->timeout_s, "seconds, of one call to the store")
      ->check(seconds_in(0.1, 3600))
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
  command->add_option("--deadline-s", options->deadline_s, "seconds to wait until all is gone")
      ->check(seconds_in(0, 86400))
      ->capture_default_str();
  command->add_flag("--wait", options->wait,
                    "wait as well until what somebody was writing is gone (Mooncake: minutes, not "
                    "counted in --deadline-s)");
  command->callback([options, &exit_code] { exit_code = run_purge(*options); });
}

}  // namespace newmoon
