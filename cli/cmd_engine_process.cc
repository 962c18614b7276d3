#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/engine_process.h"

namespace newmoon {

void add_engine_process_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<EngineProcessOptions>();
  CLI::App* command = app.add_subcommand("engine-process", "One engine of a rollout");
  command->group("");  // rollout starts it; not for people
  command->add_option("--model", options->files.base)->required();
  command->add_option("--other-model", options->files.other);
  command->add_option("--adapter", options->files.adapter);
  command->add_option("--name", options->name);
  command->add_option("--store", options->store);
  command->add_option("--weights", options->weights);
  command->add_option("--mode", options->mode);
  command->add_option("--faults", options->faults);
  command->add_option("--ranks", options->ranks);
  command->add_option("--kv-blocks", options->kv_blocks);
  command->callback([options, &exit_code] { exit_code = run_engine_process(*options); });
}

}  // namespace newmoon
