#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/seed_walk.h"

namespace newmoon {
namespace {

void print_verdict(std::size_t ranks, const SeedReport& report, const SeedFigures& figures) {
  std::printf(
      "\n{\"gate\": \"seed\", \"pass\": %s, \"figures\": {\"checks\": %zu, \"failed\": %zu, "
      "\"ranks\": %zu, \"hops\": %zu, \"messages\": %zu}}\n",
      report.failed() == 0 ? "true" : "false", report.checks(), report.failed(), ranks,
      figures.hops, figures.messages);
}

Status walk(std::size_t ranks, SeedStore& store, SeedReport& report, SeedFigures& figures) {
  SeedTrace trace;
  if (Status ran = walk_cascade(ranks, store, trace, report, figures); !ran) return ran;
  if (Status ran = walk_failures(ranks, store, trace, report); !ran) return ran;
  return store.master() ? walk_dead_master(ranks, store, trace, report) : Status();
}

int run(std::size_t ranks, const std::string& url) {
  const Result<std::unique_ptr<SeedStore>> store = SeedStore::open(url);
  SeedReport report;
  SeedFigures figures;
  Status ran;
  if (store) {
    std::printf("The reset cascade, call by call, over ipc sockets with %zu ranks, store %s\n",
                ranks, url.c_str());
    ran = walk(ranks, **store, report, figures);
  } else {
    ran = std::unexpected(store.error());
  }
  if (!ran) {
    std::fprintf(stderr, "newmoon seed: %s\n", ran.error().message.c_str());
    return 2;
  }
  print_verdict(ranks, report, figures);
  return report.failed() == 0 ? 0 : 1;
}

}  // namespace

void add_seed_command(CLI::App& app, int& exit_code) {
  auto ranks = std::make_shared<std::size_t>(2);
  CLI::App* command =
      app.add_subcommand("seed", "Shows the reset cascade hop by hop, and its failure cases");
  command->add_option("--ranks", *ranks, "ranks of the engine, each with its own socket")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  auto store = std::make_shared<std::string>("memory");
  command
      ->add_option("--store", *store,
                   "memory, mooncake (with a master of its own) or mooncake://HOST:PORT, which "
                   "is emptied")
      ->capture_default_str();
  command->callback([ranks, store, &exit_code] { exit_code = run(*ranks, *store); });
}

}  // namespace newmoon
