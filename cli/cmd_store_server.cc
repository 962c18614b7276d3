#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/stop_signals.h"
#include "store/ipc_server.h"
#include "store/make_store.h"

namespace newmoon {
namespace {

struct StoreServerOptions {
  std::string endpoint;
  std::uint64_t store_bytes = std::uint64_t{4} << 30;
  bool json_lines = false;  // a parent process reads stdout and closes stdin to stop us
};

void wait_until_stopped(const StopSignals& signals, bool until_stdin_ends) {
  pollfd sources[] = {{signals.fd(), POLLIN, 0}, {until_stdin_ends ? STDIN_FILENO : -1, POLLIN, 0}};
  while (poll(sources, 2, -1) < 0) {
  }
}

int fail_with(const StoreServerOptions& options, const Error& error) {
  if (options.json_lines) {
    std::printf("{\"error\": {\"code\": \"%s\", \"message\": \"store server did not start\"}}\n",
                std::string(traits(error.code).wire_name).c_str());
  }
  std::fprintf(stderr, "newmoon store-server: %s\n", error.message.c_str());
  return 2;
}

int run(const StoreServerOptions& options) {
  const StopSignals signals;
  SystemClock clock;
  ThreadExecutor frees("nm-frees");
  const Result<std::unique_ptr<KvStore>> store =
      make_store("memory", {.budget_bytes = options.store_bytes}, clock, frees);
  if (!store) return fail_with(options, store.error());
  const Result<std::unique_ptr<StoreServer>> server = StoreServer::start(options.endpoint, **store);
  if (!server) return fail_with(options, server.error());
  std::printf(options.json_lines ? "{\"ready\": true}\n" : "serving %s\n",
              options.endpoint.c_str());
  std::fflush(stdout);
  wait_until_stopped(signals, options.json_lines);
  return 0;
}

}  // namespace

void add_store_server_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<StoreServerOptions>();
  CLI::App* command =
      app.add_subcommand("store-server", "Share a memory store among processes of this machine");
  command->add_option("--endpoint", options->endpoint, "ipc://PATH")->required();
  command->add_option("--store-bytes", options->store_bytes, "bytes that its blocks may take")
      ->check(check_uint64)
      ->capture_default_str();
  command->add_flag("--json-lines", options->json_lines)->group("");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace newmoon
