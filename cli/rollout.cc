#include "cli/rollout.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/ipc_path.h"
#include "base/temp_folder.h"
#include "cli/child_process.h"
#include "cli/fault_spec.h"
#include "cli/rollout_fleet.h"
#include "cli/rollout_run.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 4> kWeights = {"base", "norms", "adapter", "other"};
constexpr std::array<std::string_view, 3> kPauseModes = {"abort", "wait", "keep"};

class Rollout {
 public:
  Rollout(const RolloutOptions& options, PromptSet prompts, Fleet fleet)
      : run_{.options = options,
             .workload = RolloutWorkload(options, std::move(prompts)),
             .fleet = std::move(fleet),
             .report = {}} {
    run_.report.rolling = options.update == "rolling";
    run_.report.hits_required = options.faults.empty() && options.store != "none";
  }

  Result<RolloutReport> run();

 private:
  Status run_cycle(int cycle, CycleReport& row);
  // All engines at once, without an update.
  Status generate(int cycle, CycleReport& row);
  // One request alone, and what it stores is there.
  Result<Json> generate_alone(std::size_t engine, Json request);
  Status change_weights(int cycle, CycleReport& row);
  // One call to all engines, each of which owes so many replies to earlier ones.
  Status control(const ControlCall& call, int earlier_replies, CycleReport& row);
  Status collect_in_flight(CycleReport& row);

  std::string pause_mode_before(int cycle) const;
  // Those of an engine's share, every fleet.size()-th problem, but its first.
  Json later_requests(int cycle, std::size_t engine) const;

  RolloutRun run_;
};

Result<RolloutReport> Rollout::run() {
  SystemClock clock;
  for (int cycle = 0; cycle < run_.options.cycles; ++cycle) {
    CycleReport row;
    row.weights = weights_of_cycle(cycle);
    row.pause_mode = pause_mode_before(cycle);
    const Time start = clock.now();
    const Status ran = run_.report.rolling && cycle > 0 ? run_rolling_cycle(run_, cycle, row)
                                                        : run_cycle(cycle, row);
    if (!ran) return std::unexpected(ran.error());
    row.seconds = std::chrono::duration<double>(clock.now() - start).count();
    run_.report.cycles.push_back(std::move(row));
  }
  show_progress(run_.options.cycles, run_.options.cycles, "done");
  return std::move(run_.report);
}

Status Rollout::run_cycle(int cycle, CycleReport& row) {
  if (cycle > 0) {
    show_progress(cycle, run_.options.cycles, "pause -> update -> reset -> resume");
    if (const Status changed = change_weights(cycle, row); !changed) return changed;
  }
  show_progress(cycle, run_.options.cycles, "generating with weights " + row.weights);
  return generate(cycle, row);
}

std::string Rollout::pause_mode_before(int cycle) const {
  if (cycle == 0) return {};
  if (!run_.options.pause_mode.empty()) return run_.options.pause_mode;
  return std::string(kPauseModes[static_cast<std::size_t>(cycle - 1) % kPauseModes.size()]);
}

Json Rollout::later_requests(int cycle, std::size_t engine) const {
  Json requests = Json::array();
  const int engines = run_.options.engines;
  for (int k = static_cast<int>(engine) + engines; k < run_.options.requests; k += engines) {
    requests.push_back(run_.workload.request(cycle, k, ""));
  }
  return requests;
}

Result<Json> Rollout::generate_alone(std::size_t engine, Json request) {
  return run_.fleet.engine(engine).call(
      {{"op", "generate"}, {"requests", Json::array({std::move(request)})}, {"flush", true}},
      kGenerateTimeout);
}

Status Rollout::generate(int cycle, CycleReport& row) {
  // One engine after the other, so that the later one meets a prefix in the store and not
  // in a race. With faults, which are counted in calls, only what they are aimed at runs.
  const std::size_t first_requests = run_.report.hits_required ? run_.fleet.size() : 0;
  for (std::size_t i = 0; i < first_requests; ++i) {
    const Result<Json> first = generate_alone(i, run_.workload.first_request(cycle, i));
    if (!first) return std::unexpected(first.error());
    run_.take_first(i, *first, row);
  }
  for (std::size_t i = 0; i < run_.fleet.size(); ++i) {
    const Result<Json> next =
        generate_alone(i, run_.workload.request(cycle, static_cast<int>(i), ""));
    if (!next) return std::unexpected(next.error());
    run_.take(*next, row);
  }
  for (std::size_t i = 0; i < run_.fleet.size(); ++i) {
    const Status sent = run_.fleet.engine(i).send(
        {{"op", "generate"}, {"requests", later_requests(cycle, i)}, {"flush", true}});
    if (!sent) return sent;
  }
  const Result<std::vector<Json>> rest = run_.fleet.receive_all(kGenerateTimeout);
  if (!rest) return std::unexpected(rest.error());
  for (const Json& reply : *rest) run_.take(reply, row);
  return {};
}

Status Rollout::change_weights(int cycle, CycleReport& row) {
  for (std::size_t i = 0; i < run_.fleet.size(); ++i) {
    if (const Status started = run_.start_in_flight(cycle, i); !started) return started;
  }
  int earlier_replies = kInFlightPerEngine;
  for (const ControlCall& call : weight_update_calls(row)) {
    if (const Status done = control(call, std::exchange(earlier_replies, 0), row); !done) {
      return done;
    }
  }
  return collect_in_flight(row);
}

Status Rollout::control(const ControlCall& call, int earlier_replies, CycleReport& row) {
  if (const Status sent = run_.fleet.send_all(call.request); !sent) return sent;
  for (int i = 0; i < earlier_replies; ++i) {
    const Result<std::vector<Json>> earlier = run_.fleet.receive_all(call.timeout);
    if (!earlier) return std::unexpected(earlier.error());
  }
  const Result<std::vector<Json>> replies = run_.fleet.receive_all(call.timeout);
  if (!replies) return std::unexpected(replies.error());
  for (const Json& reply : *replies) note_control_reply(call, reply, row);
  return {};
}

Status Rollout::collect_in_flight(CycleReport& row) {
  if (const Status sent = run_.fleet.send_all({{"op", "collect"}}); !sent) return sent;
  const Result<std::vector<Json>> replies = run_.fleet.receive_all(kGenerateTimeout);
  if (!replies) return std::unexpected(replies.error());
  for (const Json& reply : *replies) run_.take(reply, row);
  return {};
}

Status check(const RolloutOptions& options) {
  const auto in_range = [](const char* name, int value, int low, int high) -> Status {
    if (value >= low && value <= high) return {};
    return fail(Code::kBadRequest, std::string("--") + name + " must be in " + std::to_string(low) +
                                       ".." + std::to_string(high) + ", not " +
                                       std::to_string(value));
  };
  const std::array<Status, 7> checks = {
      in_range("engines", options.engines, 1, 8),
      in_range("ranks", options.ranks, 1, 30),
      in_range("cycles", options.cycles, 1, 100),
      in_range("requests", options.requests, options.engines * kInFlightPerEngine, 1000),
      in_range("max-tokens", options.max_tokens, 4, 512),
      in_range("shots", options.shots, 1, 16),
      in_range("kv-blocks", options.kv_blocks, 16, 1'000'000),
  };
  for (const Status& status : checks) {
    if (!status) return status;
  }
  if (options.update == "rolling" && options.engines < 2) {
    return fail(Code::kBadRequest, "--update rolling needs --engines of 2 or more");
  }
  const bool own_store = options.store == "memory" || options.store == "mooncake";
  if (own_store && options.store_bytes == 0) {
    return fail(Code::kBadRequest,
                "--store-bytes 0: the store needs a budget; for no external tier use "
                "--store none");
  }
  if (own_store || options.store == "none" || options.store.starts_with("mooncake://")) return {};
  if (const Result<std::string> path = parse_ipc_endpoint(options.store); !path) {
    return fail(path.error().code,
                "--store '" + options.store +
                    "': use memory, mooncake, ipc://PATH, mooncake://HOST:PORT or none");
  }
  return {};
}

// A paused request comes back as a prompt of all its tokens: they must fit with the answer.
Status check_lengths(const RolloutOptions& options, const PromptSet& prompts,
                     const Tokenizer& tokenizer) {
  const RolloutWorkload workload(options, prompts);
  std::set<std::string> texts;
  for (int cycle = 0; cycle < options.cycles; ++cycle) {
    for (int k = 0; k < options.requests; ++k) {
      texts.insert(workload.request(cycle, k, "").at("prompt"));
    }
    for (int i = 0; i < options.engines; ++i) {
      texts.insert(workload.first_request(cycle, static_cast<std::size_t>(i)).at("prompt"));
    }
  }
  int longest = 0;
  for (const std::string& text : texts) {
    longest = std::max(longest, static_cast<int>(tokenizer.encode(text, false).size()));
  }
  const int tokens = longest + options.max_tokens;
  const std::string what = "--shots " + std::to_string(options.shots) + " --max-tokens " +
                           std::to_string(options.max_tokens) + ": the longest request and its " +
                           "answer are " + std::to_string(tokens) + " tokens; ";
  if (tokens > kRolloutContextTokens) {
    return fail(Code::kBadRequest, what + "the context holds " +
                                       std::to_string(kRolloutContextTokens) +
                                       ": use fewer --shots");
  }
  // And the null block.
  const int blocks = (tokens + kRolloutBlockTokens - 1) / kRolloutBlockTokens + 1;
  if (blocks > options.kv_blocks) {
    return fail(Code::kBadRequest, what + "that takes --kv-blocks of " + std::to_string(blocks) +
                                       " or more, not " + std::to_string(options.kv_blocks));
  }
  return {};
}

}  // namespace

std::string weights_of_cycle(int cycle) {
  return std::string(kWeights[static_cast<std::size_t>(cycle) % kWeights.size()]);
}

std::vector<std::string> engine_process_argv(const RolloutOptions& options, const std::string& name,
                                             const std::string& store, const std::string& weights) {
  std::vector<std::string> argv = {own_program_path(), "engine-process"};
  const std::pair<std::string_view, std::string> arguments[] = {
      {"--model", options.files.base},
      {"--other-model", options.files.other},
      {"--adapter", options.files.adapter},
      {"--name", name},
      {"--store", store},
      {"--weights", weights},
      {"--mode", options.mode},
      {"--ranks", std::to_string(options.ranks)},
      {"--kv-blocks", std::to_string(options.kv_blocks)},
      {"--faults", store == "none" ? std::string() : options.faults}};
  for (const auto& [option, value] : arguments) {
    if (value.empty()) continue;
    argv.emplace_back(option);
    argv.push_back(value);
  }
  return argv;
}

Result<RolloutReport> run_rollout(
    const RolloutOptions& options,
    const std::function<Result<std::unique_ptr<Tokenizer>>()>& load_tokenizer) {
  if (const Status checked = check(options); !checked) return std::unexpected(checked.error());
  if (const auto faults = parse_fault_spec(options.faults); !faults) {
    return std::unexpected(faults.error());
  }
  Result<PromptSet> prompts = load_prompts(options.files.problems, options.shots);
  if (!prompts) return std::unexpected(prompts.error());
  const Result<std::unique_ptr<Tokenizer>> tokenizer = load_tokenizer();
  if (!tokenizer) return std::unexpected(tokenizer.error());
  if (const Status fits = check_lengths(options, *prompts, **tokenizer); !fits) {
    return std::unexpected(fits.error());
  }
  // All folders of all processes lie in this one, so that nothing is left of one that
  // was killed.
  const Result<TempFolder> folder = TempFolder::create();
  if (!folder) return std::unexpected(folder.error());
  setenv("TMPDIR", folder->path().c_str(), 1);
  Result<RolloutReport> report = [&]() -> Result<RolloutReport> {
    Result<Fleet> fleet = Fleet::start(options);
    if (!fleet) return std::unexpected(fleet.error());
    return Rollout(options, std::move(*prompts), std::move(*fleet)).run();
  }();
  if (!report || !options.verify) return report;
  const Status compared = compare_with_cold_engines(options, *report);
  if (!compared) return std::unexpected(compared.error());
  return report;
}

}  // namespace newmoon
