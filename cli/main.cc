#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "base/log.h"
#include "cli/command_line.h"
#include "cli/commands.h"

namespace {

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
  CLI::App app{"Newmoon: an external KV cache that never serves KV of old weights", "newmoon"};
  app.fallthrough();  // a command's options may stand behind those below it
  app.set_version_flag("--version", "newmoon " NEWMOON_VERSION);
  app.require_subcommand(1);
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->check([](const std::string& name) {
        newmoon::LogLevel level;
        const bool known = newmoon::parse_log_level(name, &level);
        return known ? std::string() : "'" + name + "' is not debug, info, warning or error";
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
  newmoon::refuse_what_is_no_value(app);
  try {
    app.parse(newmoon::command_line_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    return newmoon::end_with_usage(app, error);
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
