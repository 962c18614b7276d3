#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>

#include "cli/commands.h"
#include "cli/option_checks.h"
#include "cli/rollout.h"
#include "cli/stop_signals.h"
#include "model/llama_tokenizer.h"

namespace newmoon {
namespace {

constexpr const char* kColumns =
    "Columns of the table, a row a cycle:\n"
    "  weights, pause     what it ran on, and how the requests in flight were paused for it\n"
    "  prompt             tokens of the prompts, of which\n"
    "  local, external      were found in the engine's own cache, and in the store,\n"
    "  computed             and were computed\n"
    "  first-use          external tokens of each engine's first request with these weights,\n"
    "  second               and of the second engine's alone: what the first one had stored\n"
    "  two-ids            requests answered with the weights before while an engine already\n"
    "                       ran on these (--update rolling)\n"
    "  pause, update, reset  milliseconds, of the slowest engine\n"
    "  tok/s              output tokens a second, the update included";

int report_error(const Error& error) {
  std::fprintf(stderr, "newmoon rollout: %s\n", error.message.c_str());
  return 2;
}

int run(RolloutOptions& options) {
  const StopSignals signals;
  options.stop_fd = signals.fd();
  const Result<RolloutReport> report =
      run_rollout(options, [&options]() -> Result<std::unique_ptr<Tokenizer>> {
        return LlamaTokenizer::load(options.files.base);
      });
  if (!report) return report_error(report.error());
  print_report(*report);
  if (!options.json_path.empty()) {
    std::ofstream file(options.json_path);
    file << to_json(*report).dump(2) << "\n";
    if (!file.flush()) {
      return report_error({Code::kUnavailable, "cannot write --json " + options.json_path});
    }
  }
  return report->pass() ? 0 : 1;
}

}  // namespace

void add_rollout_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RolloutOptions>();
  options->files = default_model_files();
  CLI::App* command = app.add_subcommand(
      "rollout", "Engines that share a store answer problems while their weights change");
  command->footer(kColumns);
  command->option_defaults()->always_capture_default();
  command->add_option("--model", options->files.base, "GGUF of the base weights");
  command->add_option("--other-model", options->files.other, "GGUF of the other weights");
  command->add_option("--adapter", options->files.adapter, "GGUF of the LoRA adapter");
  command->add_option("--problems", options->files.problems, "HumanEval as JSON lines");
  command->add_option("--store", options->store,
                      "memory or mooncake (a server or master for this run), ipc://PATH, "
                      "mooncake://HOST:PORT or none");
  command
      ->add_option("--store-bytes", options->store_bytes,
                   "bytes that the blocks of --store memory or mooncake may take")
      ->check(check_uint64);
  command->add_option("--mode", options->mode, "numerics: exact or fast")
      ->check(CLI::IsMember({"exact", "fast"}));
  command->add_option("--faults", options->faults,
                      "faults to inject; grammar: store/fault_rule.h, admin/faulty_transport.h");
  command
      ->add_option("--update", options->update,
                   "the engines together, or rolling: one after the other under load")
      ->check(CLI::IsMember({"together", "rolling"}));
  command->add_option("--engines", options->engines, "engine processes");
  command->add_option("--ranks", options->ranks, "store workers an engine");
  command->add_option("--cycles", options->cycles, "weight versions to go through");
  command->add_option("--requests", options->requests, "requests a cycle");
  command->add_option("--max-tokens", options->max_tokens, "output tokens a request");
  command->add_option("--shots", options->shots, "problems in the shared prefix");
  command->add_option("--kv-blocks", options->kv_blocks, "blocks of an engine's own cache");
  command->add_option("--pause-mode", options->pause_mode, "for every update, not each in turn")
      ->check(CLI::IsMember({"abort", "wait", "keep"}));
  command->add_flag("--repeat-problems", options->repeat_problems,
                    "every cycle asks the same problems");
  command->add_option("--json", options->json_path, "write the report here")
      ->check(check_output_path);
  command->add_flag_callback(
      "--no-verify", [options] { options->verify = false; }, "do not compare with cold engines");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace newmoon
