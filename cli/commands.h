// The commands of `newmoon`, one add_*_command a command. Each adds its options to
// the app and runs in a callback that sets `exit_code`: 0 = holds or done, 1 = ran
// and does not hold, 2 = bad usage or environment.
#pragma once

namespace CLI {
class App;
}

namespace newmoon {

void add_bench_command(CLI::App& app, int& exit_code);
void add_ctl_command(CLI::App& app, int& exit_code);
void add_engine_process_command(CLI::App& app, int& exit_code);
void add_lookup_server_command(CLI::App& app, int& exit_code);
void add_purge_command(CLI::App& app, int& exit_code);
void add_rollout_command(CLI::App& app, int& exit_code);
void add_scopes_command(CLI::App& app, int& exit_code);
void add_seed_command(CLI::App& app, int& exit_code);
void add_sim_command(CLI::App& app, int& exit_code);
void add_store_server_command(CLI::App& app, int& exit_code);

}  // namespace newmoon
