#include "cli/rollout.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "base/ipc_path.h"
#include "base/temp_folder.h"
#include "cli/child_process.h"
#include "cli/fault_spec.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 4> kWeights = {"base", "norms", "adapter", "other"};
constexpr std::array<std::string_view, 3> kPauseModes = {"abort", "wait", "keep"};
constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kGenerateTimeout = std::chrono::minutes(10);
constexpr Duration kControlTimeout = std::chrono::seconds(60);
constexpr int kInFlightPerEngine = 2;  // requests that run while the weights change

// One line that is redrawn on a terminal, and a line a stage elsewhere.
void show_progress(int cycle, int cycles, std::string_view stage) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  std::string bar(static_cast<std::size_t>(cycles), '.');
  std::fill(bar.begin(), bar.begin() + cycle, '#');
  std::fprintf(stderr, "%s[%s] cycle %d/%d %-40.*s%s", terminal ? "\r" : "", bar.c_str(),
               std::min(cycle + 1, cycles), cycles, static_cast<int>(stage.size()), stage.data(),
               terminal ? "" : "\n");
  if (terminal && cycle == cycles) std::fputc('\n', stderr);
}

// Engine processes and, for --store memory, the store server they share.
class Fleet {
 public:
  static Result<Fleet> start(const RolloutOptions& options);
  Fleet(Fleet&&) = default;
  Fleet& operator=(Fleet&&) = delete;
  ~Fleet();  // the engines first, then their store

  std::size_t size() const { return engines_.size(); }
  ChildProcess& engine(std::size_t i) { return engines_[i]; }
  // The same request to every engine at once.
  Status send_all(const Json& request);
  // One reply of each engine, in order.
  Result<std::vector<Json>> receive_all(Duration timeout);

 private:
  Fleet() = default;
  Status start_store(const RolloutOptions& options);

  std::optional<TempFolder> folder_;  // of the store's socket
  std::string store_url_;
  std::unique_ptr<ChildProcess> store_server_;
  std::vector<ChildProcess> engines_;
};

Status Fleet::start_store(const RolloutOptions& options) {
  store_url_ = options.store;
  if (options.store != "memory") return {};
  Result<TempFolder> folder = TempFolder::create();
  if (!folder) return std::unexpected(folder.error());
  folder_.emplace(std::move(*folder));
  store_url_ = "ipc://" + folder_->path() + "/store.sock";
  Result<ChildProcess> server =
      ChildProcess::start("store server",
                          {own_program_path(), "store-server", "--endpoint", store_url_,
                           "--store-bytes", std::to_string(options.store_bytes), "--json-lines"},
                          options.stop_fd);
  if (!server) return std::unexpected(server.error());
  store_server_ = std::make_unique<ChildProcess>(std::move(*server));
  const Result<Json> ready = store_server_->receive(kStartTimeout);
  return ready ? Status{} : std::unexpected(ready.error());
}

Result<Fleet> Fleet::start(const RolloutOptions& options) {
  Fleet fleet;
  if (const Status started = fleet.start_store(options); !started) {
    return std::unexpected(started.error());
  }
  for (int i = 0; i < options.engines; ++i) {
    const std::string name = "engine" + std::to_string(i);
    Result<ChildProcess> child = ChildProcess::start(
        name, engine_process_argv(options, name, fleet.store_url_, weights_of_cycle(0)),
        options.stop_fd);
    if (!child) return std::unexpected(child.error());
    fleet.engines_.push_back(std::move(*child));
  }
  for (ChildProcess& engine : fleet.engines_) {
    if (const Result<Json> ready = engine.receive(kStartTimeout); !ready) {
      return std::unexpected(ready.error());
    }
  }
  return fleet;
}

Fleet::~Fleet() {
  engines_.clear();
  store_server_.reset();
}

Status Fleet::send_all(const Json& request) {
  for (ChildProcess& engine : engines_) {
    if (const Status sent = engine.send(request); !sent) return sent;
  }
  return {};
}

Result<std::vector<Json>> Fleet::receive_all(Duration timeout) {
  std::vector<Json> replies;
  for (ChildProcess& engine : engines_) {
    Result<Json> reply = engine.receive(timeout);
    if (!reply) return std::unexpected(reply.error());
    replies.push_back(std::move(*reply));
  }
  return replies;
}

class Rollout {
 public:
  Rollout(const RolloutOptions& options, PromptSet prompts, Fleet fleet)
      : options_(options), prompts_(std::move(prompts)), fleet_(std::move(fleet)) {}

  Result<RolloutReport> run();

 private:
  Status run_cycle(int cycle);
  Status generate(int cycle, CycleReport& row);
  Status change_weights(int cycle, CycleReport& row);
  Status start_in_flight(int coming_cycle);
  Status collect_in_flight(CycleReport& row);

  // One control call to all engines; `ms` becomes the slowest engine's time.
  struct Control {
    Json request;
    double* ms;
    Duration timeout = kControlTimeout;
    int earlier_replies = 0;  // of calls sent before, not yet received
  };
  Status run_control(const Control& control, CycleReport& row);
  // Takes one engine's outputs into the row and the list of spans.
  void take(const Json& reply, CycleReport& row);

  // Problem k of a cycle. A cycle that returns to earlier weights asks the problems
  // of the cycle that had them, so that its first requests can hit.
  const std::string& problem(int cycle, int k) const;
  Json request(int cycle, int k, std::string_view suffix) const;
  // Those of an engine's share, every fleet_.size()-th problem, but its first.
  Json later_requests(int cycle, std::size_t engine) const;

  const RolloutOptions& options_;
  const PromptSet prompts_;
  Fleet fleet_;
  RolloutReport report_;
};

Result<RolloutReport> Rollout::run() {
  for (int cycle = 0; cycle < options_.cycles; ++cycle) {
    if (const Status ran = run_cycle(cycle); !ran) return std::unexpected(ran.error());
  }
  show_progress(options_.cycles, options_.cycles, "done");
  return std::move(report_);
}

Status Rollout::run_cycle(int cycle) {
  CycleReport row;
  row.weights = weights_of_cycle(cycle);
  if (cycle > 0) {
    show_progress(cycle, options_.cycles, "pause -> update -> reset -> resume");
    if (const Status changed = change_weights(cycle, row); !changed) return changed;
  }
  show_progress(cycle, options_.cycles, "generating with weights " + row.weights);
  if (const Status generated = generate(cycle, row); !generated) return generated;
  report_.cycles.push_back(std::move(row));
  return {};
}

const std::string& Rollout::problem(int cycle, int k) const {
  const std::size_t distinct =
      options_.repeat_problems ? 0 : static_cast<std::size_t>(cycle) % kWeights.size();
  const std::size_t index =
      distinct * static_cast<std::size_t>(options_.requests) + static_cast<std::size_t>(k);
  return prompts_.problems[index % prompts_.problems.size()];
}

Json Rollout::request(int cycle, int k, std::string_view suffix) const {
  return {{"id", "c" + std::to_string(cycle) + "-r" + std::to_string(k) + std::string(suffix)},
          {"prompt", prompts_.prefix + problem(cycle, k)},
          {"max_tokens", options_.max_tokens}};
}

Json Rollout::later_requests(int cycle, std::size_t engine) const {
  Json requests = Json::array();
  const int engines = static_cast<int>(fleet_.size());
  for (int k = static_cast<int>(engine) + engines; k < options_.requests; k += engines) {
    requests.push_back(request(cycle, k, ""));
  }
  return requests;
}

Status Rollout::generate(int cycle, CycleReport& row) {
  SystemClock clock;
  const Time start = clock.now();
  // One engine after the other runs its first request alone, so that the later one
  // meets the shared prefix in the store and not in a race.
  for (std::size_t i = 0; i < fleet_.size(); ++i) {
    const Result<Json> first =
        fleet_.engine(i).call({{"op", "generate"},
                               {"requests", Json::array({request(cycle, static_cast<int>(i), "")})},
                               {"flush", true}},
                              kGenerateTimeout);
    if (!first) return std::unexpected(first.error());
    const std::uint64_t before = row.external_hit_tokens;
    take(*first, row);
    row.first_use_external_hit_tokens += row.external_hit_tokens - before;
  }
  for (std::size_t i = 0; i < fleet_.size(); ++i) {
    const Status sent = fleet_.engine(i).send(
        {{"op", "generate"}, {"requests", later_requests(cycle, i)}, {"flush", true}});
    if (!sent) return sent;
  }
  for (std::size_t i = 0; i < fleet_.size(); ++i) {
    const Result<Json> rest = fleet_.engine(i).receive(kGenerateTimeout);
    if (!rest) return std::unexpected(rest.error());
    take(*rest, row);
  }
  row.generate_seconds += std::chrono::duration<double>(clock.now() - start).count();
  return {};
}

Status Rollout::start_in_flight(int coming_cycle) {
  // First a problem that the neighbour is asked in the coming cycle: its save may be under way
  // when the pause comes. While it decodes, one that the neighbour has just answered: its load
  // may be. Not waited for: the pause follows on each engine as soon as it has come so far.
  for (std::size_t i = 0; i < fleet_.size(); ++i) {
    const int neighbour = static_cast<int>((i + 1) % fleet_.size());
    const int second = neighbour + static_cast<int>(fleet_.size());
    const std::string suffix = "-across-" + std::to_string(i);
    const std::array<Json, kInFlightPerEngine> requests = {
        request(coming_cycle, second, suffix), request(coming_cycle - 1, neighbour, suffix)};
    int until_output_tokens = 0;
    for (const Json& in_flight : requests) {
      until_output_tokens += 3;
      const Status sent = fleet_.engine(i).send({{"op", "submit"},
                                                 {"requests", Json::array({in_flight})},
                                                 {"until_output_tokens", until_output_tokens}});
      if (!sent) return sent;
    }
  }
  return {};
}

Status Rollout::change_weights(int cycle, CycleReport& row) {
  row.pause_mode = options_.pause_mode;
  if (row.pause_mode.empty()) {
    row.pause_mode = kPauseModes[static_cast<std::size_t>(cycle - 1) % kPauseModes.size()];
  }
  if (const Status started = start_in_flight(cycle); !started) return started;
  double resume_ms = 0;
  const std::array<Control, 4> controls = {{
      {{{"op", "pause"}, {"mode", row.pause_mode}, {"clear_cache", true}},
       &row.pause_ms,
       kGenerateTimeout,
       kInFlightPerEngine},
      {{{"op", "update"}, {"weights", row.weights}}, &row.update_ms},
      {{{"op", "reset"}}, &row.reset_ms},
      {{{"op", "resume"}}, &resume_ms},
  }};
  for (const Control& control : controls) {
    if (const Status done = run_control(control, row); !done) return done;
  }
  return collect_in_flight(row);
}

Status Rollout::run_control(const Control& control, CycleReport& row) {
  if (const Status sent = fleet_.send_all(control.request); !sent) return sent;
  for (int i = 0; i < control.earlier_replies; ++i) {
    const Result<std::vector<Json>> earlier = fleet_.receive_all(control.timeout);
    if (!earlier) return std::unexpected(earlier.error());
  }
  const Result<std::vector<Json>> replies = fleet_.receive_all(control.timeout);
  if (!replies) return std::unexpected(replies.error());
  for (const Json& reply : *replies) {
    if (reply.at("ms") < *control.ms) continue;
    *control.ms = reply.at("ms");
    if (reply.contains("steps_ms")) row.reset_steps_ms = reply.at("steps_ms");
  }
  return {};
}

Status Rollout::collect_in_flight(CycleReport& row) {
  if (const Status sent = fleet_.send_all({{"op", "collect"}}); !sent) return sent;
  const Result<std::vector<Json>> replies = fleet_.receive_all(kGenerateTimeout);
  if (!replies) return std::unexpected(replies.error());
  for (const Json& reply : *replies) take(reply, row);
  return {};
}

void Rollout::take(const Json& reply, CycleReport& row) {
  for (const Json& output : reply.at("outputs")) {
    const std::vector<std::int32_t> prompt = output.at("prompt_token_ids");
    const std::vector<std::int32_t> tokens = output.at("token_ids");
    row.prompt_tokens += prompt.size();
    row.output_tokens += tokens.size();
    row.local_hit_tokens += output.at("local_hit_tokens").get<std::uint64_t>();
    row.external_hit_tokens += output.at("external_hit_tokens").get<std::uint64_t>();
    row.computed_tokens += output.at("computed_tokens").get<std::uint64_t>();
    for (const Json& span : output.at("weight_versions")) {
      const auto start = span.at("start").get<std::ptrdiff_t>();
      const auto end = span.at("end").get<std::ptrdiff_t>();
      OutputSpan stretch{.weights = span.at("version"),
                         .request_id = output.at("id"),
                         .context = prompt,
                         .tokens = {tokens.begin() + start, tokens.begin() + end}};
      stretch.context.insert(stretch.context.end(), tokens.begin(), tokens.begin() + start);
      report_.spans.push_back(std::move(stretch));
    }
  }
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
  if (options.store == "memory" && options.store_bytes == 0) {
    return fail(Code::kBadRequest,
                "--store-bytes 0: the memory store needs a budget; for no external tier use "
                "--store none");
  }
  if (options.store == "memory" || options.store == "none") return {};
  if (const Result<std::string> path = parse_ipc_endpoint(options.store); !path) {
    return fail(path.error().code,
                "--store '" + options.store + "': use memory, ipc://PATH or none");
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

Result<RolloutReport> run_rollout(const RolloutOptions& options) {
  if (const Status checked = check(options); !checked) return std::unexpected(checked.error());
  if (const auto faults = parse_fault_spec(options.faults); !faults) {
    return std::unexpected(faults.error());
  }
  Result<PromptSet> prompts = load_prompts(options.files.problems, options.shots);
  if (!prompts) return std::unexpected(prompts.error());
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
  if (report) report->hits_required = options.faults.empty() && options.store != "none";
  if (!report || !options.verify) return report;
  const Status compared = compare_with_cold_engines(options, *report);
  if (!compared) return std::unexpected(compared.error());
  return report;
}

}  // namespace newmoon
