#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "base/log.h"
#include "cli/commands.h"

namespace {

// CLI11 has an exit code for each kind of mistake; ours is 2 for all of them.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help
  // CLI11 misses the command first, and does not say what stood in its place.
  const std::vector<std::string> unknown = app.remaining(true);
  if (error.get_name() == "RequiredError" && !unknown.empty()) {
    std::fprintf(stderr, "newmoon: unknown command %s; see newmoon --help\n", unknown[0].c_str());
    return 2;
  }
  std::fprintf(stderr, "newmoon: %s; see newmoon --help\n", error.what());
  return 2;
}

// The next file opened, a socket even, would take the place of a stream that is closed.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0) (void)open("/dev/null", O_RDWR);
  }
}

// glibc gives a buffer of some MiB back to the system as soon as it is freed, and the
// next message pays for zeroed pages again: half the speed of a store over ipc.
void keep_message_buffers() {
  constexpr int kBytes = 16 << 20;
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  keep_message_buffers();
  CLI::App app{"Newmoon: an external KV cache that never serves KV of old weights"};
  app.set_version_flag("--version", "newmoon " NEWMOON_VERSION);
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
  newmoon::add_ctl_command(app, exit_code);
  newmoon::add_lookup_server_command(app, exit_code);
  newmoon::add_purge_command(app, exit_code);
  newmoon::add_scopes_command(app, exit_code);
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
  } catch (const std::exception& error) {
    std::fprintf(stderr, "newmoon: %s; is there enough memory?\n", error.what());
    return 2;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "newmoon: cannot write the standard output\n");
    return 2;
  }
  return exit_code;
}
