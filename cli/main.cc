#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "cli/commands.h"

namespace {

// CLI11 has an exit code for each kind of mistake; ours is 2 for all of them.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help
  std::fprintf(stderr, "newmoon: %s; see newmoon --help\n", error.what());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Newmoon: an external KV cache that never serves KV of old weights"};
  app.require_subcommand(1);
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "debug, info, warning or error")
      ->check([](const std::string& name) {
        newmoon::LogLevel level;
        return newmoon::parse_log_level(name, &level) ? std::string() : "unknown log level " + name;
      })
      ->each([](const std::string& name) {
        newmoon::LogLevel level;
        newmoon::parse_log_level(name, &level);
        newmoon::set_log_threshold(level);
      });

  int exit_code = 0;
  newmoon::add_bench_command(app, exit_code);
  newmoon::add_lookup_server_command(app, exit_code);
  newmoon::add_sim_command(app, exit_code);
  newmoon::add_store_server_command(app, exit_code);
#ifdef NEWMOON_LLAMA
  newmoon::add_rollout_command(app, exit_code);
  newmoon::add_engine_process_command(app, exit_code);
#endif
  newmoon::add_seed_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  }
  return exit_code;
}
