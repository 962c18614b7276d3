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

int run(std::size_t ranks) {
  SeedTrace trace;
  SeedReport report;
  SeedFigures figures;
  std::printf("The reset cascade, call by call, over ipc sockets with %zu ranks\n", ranks);
  Status ran = walk_cascade(ranks, trace, report, figures);
  if (ran) ran = walk_failures(ranks, trace, report);
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
  command->callback([ranks, &exit_code] { exit_code = run(*ranks); });
}

}  // namespace newmoon
