#include "cli/engine_process.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/contain.h"
#include "cli/child_process.h"
#include "cli/demo_weights.h"
#include "cli/fault_spec.h"
#include "cli/rollout.h"
#include "cli/stop_signals.h"
#include "engine/engine_stack.h"
#include "model/llama_tokenizer.h"
#include "store/faulty_store.h"
#include "store/make_store.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr int kSequencesMax = 6;
constexpr Duration kStoreTimeout = std::chrono::seconds(5);
constexpr Duration kPauseTimeout = std::chrono::seconds(5);
constexpr Duration kWaitPauseTimeout = std::chrono::seconds(60);  // requests run to their end
constexpr Duration kIdle = std::chrono::microseconds(300);
constexpr Duration kFlushTimeout = std::chrono::seconds(60);

Json error_reply(const Error& error) {
  return {{"error", {{"code", traits(error.code).wire_name}, {"message", error.message}}}};
}

void write_line(const Json& reply) {
  const std::string line = to_line(reply);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

// A request on its way and what has come of it.
struct Generation {
  std::vector<Token> prompt;
  std::vector<Token> tokens;
  std::uint32_t max_tokens = 0;
  std::optional<RequestOutput> end;
};

Json output_json(const RequestId& id, const Generation& generation) {
  Json spans = Json::array();
  for (const WeightVersionSpan& span : generation.end->weight_versions) {
    spans.push_back({{"version", span.version}, {"start", span.start}, {"end", span.end}});
  }
  const RequestCounters& counters = generation.end->counters;
  return {{"id", id},
          {"prompt_token_ids", generation.prompt},
          {"token_ids", generation.tokens},
          {"weight_versions", spans},
          {"finish_reason", to_string(generation.end->status)},
          {"local_hit_tokens", counters.local_hit_tokens},
          {"external_hit_tokens", counters.external_hit_tokens},
          {"computed_tokens", counters.computed_tokens}};
}

class EngineProcess {
 public:
  explicit EngineProcess(EngineProcessOptions options) : options_(std::move(options)) {}

  Status start();
  void serve();

 private:
  Status open_store();
  Status open_stack();
  Status first_weights();

  Result<Json> handle(const Json& request);
  Result<Json> generate(const Json& request);
  Result<Json> submit(const Json& request);
  Result<Json> collect();
  Result<Json> pause(const Json& request);
  Result<Json> update(const Json& request);
  Result<Json> reset();
  Result<Json> resume();
  Json stats();

  Status add(const Json& request);
  Status add(const RequestId& id, std::vector<Token> prompt, std::uint32_t max_tokens);
  Json take_outputs();
  Status flush();
  // One turn of the engine; waits a moment when it has nothing to run.
  void turn();
  // kUnavailable once nobody waits for it any more.
  template <class Done>
  Status run_until(Done done) {
    while (!done()) {
      if (must_stop()) return fail(Code::kUnavailable, "told to stop");
      turn();
    }
    return {};
  }
  // Its stdin was closed, or a signal came.
  bool must_stop() const;
  bool all_finished() const;
  std::size_t output_tokens() const;
  Json timed(Time start, Json reply) const;

  const EngineProcessOptions options_;
  const StopSignals signals_;  // before the first thread
  SystemClock clock_;
  SystemRandom random_;
  std::unique_ptr<LlamaRunner> runner_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvArena> arena_;
  std::optional<DemoWeights> weights_;
  FaultSpec faults_;
  ThreadExecutor frees_{"nm-frees"};
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<FaultyStore> faulty_store_;  // around store_, if there are faults for it
  std::unique_ptr<EngineStack> stack_;
  std::map<RequestId, Generation> generations_;
};

// --- start ---

Status EngineProcess::start() {
  Result<FaultSpec> faults = parse_fault_spec(options_.faults);
  if (!faults) return std::unexpected(faults.error());
  faults_ = std::move(*faults);
  LlamaOptions llama{.model_path = options_.files.base,
                     .mode = options_.mode == "fast" ? LlamaMode::kFast : LlamaMode::kExact,
                     .threads = options_.threads,
                     .context_tokens_max = kRolloutContextTokens,
                     .sequences_max = kSequencesMax,
                     .block_size = kRolloutBlockTokens};
  Result<std::unique_ptr<LlamaRunner>> runner = LlamaRunner::load(llama);
  if (!runner) return std::unexpected(runner.error());
  runner_ = std::move(*runner);
  Result<std::unique_ptr<LlamaTokenizer>> tokenizer = LlamaTokenizer::load(options_.files.base);
  if (!tokenizer) return std::unexpected(tokenizer.error());
  tokenizer_ = std::move(*tokenizer);
  Result<std::unique_ptr<KvArena>> arena =
      KvArena::create(runner_->kv_layout(), options_.kv_blocks);
  if (!arena) return std::unexpected(arena.error());
  arena_ = std::move(*arena);
  if (const Status attached = runner_->attach(arena_.get()); !attached) return attached;
  if (const Status weights = first_weights(); !weights) return weights;
  if (const Status opened = open_store(); !opened) return opened;

  return open_stack();
}

// Before the engine exists: it has only ever held these.
Status EngineProcess::first_weights() {
  Result<DemoWeights> weights = DemoWeights::create(*runner_, options_.files);
  if (!weights) return std::unexpected(weights.error());
  weights_ = std::move(*weights);
  const Result<std::vector<WeightUpdate>> updates = weights_->updates_to(options_.weights);
  if (!updates) return std::unexpected(updates.error());
  for (const WeightUpdate& update : *updates) {
    if (const Status done = runner_->update_weights(update); !done) return done;
  }
  weights_->note_current(options_.weights);
  return {};
}

Status EngineProcess::open_store() {
  if (options_.store == "none") return {};
  Result<std::unique_ptr<KvStore>> store =
      make_store(options_.store, {.timeout = kStoreTimeout}, clock_, frees_);
  if (!store) return std::unexpected(store.error());
  store_ = std::move(*store);
  // A run that could never hit says so now.
  if (const Result<StoreStats> there = store_->stats(); !there) {
    return std::unexpected(there.error());
  }
  if (!faults_.store.empty()) {
    faulty_store_ = std::make_unique<FaultyStore>(*store_, faults_.store, clock_, random_);
  }
  return {};
}

Status EngineProcess::open_stack() {
  EngineStack::Options options;
  options.core.identity = IdentityMode::kDigest;
  options.core.name_space = "rollout";
  options.core.weight_version = options_.weights;
  options.rank_count = options_.ranks;
  options.engine_id = options_.name;
  EngineStack::Parts parts{.runner = *runner_,
                           .arena = *arena_,
                           .store = faulty_store_ ? faulty_store_.get() : store_.get(),
                           .clock = clock_,
                           .random = random_,
                           .wrap_transport = {}};
  if (!faults_.transport.empty()) {
    parts.wrap_transport = [this](std::unique_ptr<ClientTransport> transport) {
      return std::make_unique<FaultyTransport>(std::move(transport), faults_.transport, clock_);
    };
  }
  Result<std::unique_ptr<EngineStack>> started = EngineStack::start(options, std::move(parts));
  if (!started) return std::unexpected(started.error());
  stack_ = std::move(*started);
  return {};
}

// --- the loop ---

void EngineProcess::serve() {
  std::string unread;
  while (true) {
    const int timeout_ms = stack_->core().has_work() ? 0 : 1000;
    pollfd inputs[] = {{STDIN_FILENO, POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    if (poll(inputs, 2, timeout_ms) <= 0) {
      if (timeout_ms == 0) turn();
      continue;
    }
    if (inputs[1].revents != 0) return;
    std::array<char, 65536> buffer;
    const ssize_t n = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n <= 0) return;
    unread.append(buffer.data(), static_cast<std::size_t>(n));
    for (std::size_t end; (end = unread.find('\n')) != std::string::npos;
         unread.erase(0, end + 1)) {
      const Result<Json> reply =
          contain([&] { return handle(Json::parse(unread.substr(0, end), nullptr, false)); });
      write_line(reply ? *reply : error_reply(reply.error()));
    }
  }
}

bool EngineProcess::must_stop() const {
  pollfd inputs[] = {{STDIN_FILENO, 0, 0}, {signals_.fd(), POLLIN, 0}};
  return poll(inputs, 2, 0) > 0;
}

void EngineProcess::turn() {
  const std::vector<RequestOutput> outputs = stack_->core().step();
  for (const RequestOutput& output : outputs) {
    Generation& generation = generations_[output.id];
    for (const SampledToken& sampled : output.tokens) generation.tokens.push_back(sampled.token);
    if (output.finished) generation.end = output;
  }
  // Only the connector has something under way: let its threads at it.
  if (outputs.empty()) clock_.sleep_until(clock_.now() + kIdle);
}

Result<Json> EngineProcess::handle(const Json& request) {
  try {
    const std::string op = request.at("op");
    if (op == "generate") return generate(request);
    if (op == "submit") return submit(request);
    if (op == "collect") return collect();
    if (op == "pause") return pause(request);
    if (op == "update") return update(request);
    if (op == "reset") return reset();
    if (op == "resume") return resume();
    if (op == "stats") return stats();
    return fail(Code::kBadRequest, "unknown op " + op);
  } catch (const Json::exception& error) {
    return fail(Code::kBadRequest, error.what());
  }
}

// --- requests ---

Status EngineProcess::add(const Json& request) {
  std::vector<Token> prompt;
  if (request.contains("prompt_token_ids")) {
    prompt = request.at("prompt_token_ids").get<std::vector<Token>>();
  } else {
    prompt = tokenizer_->encode(request.at("prompt").get<std::string>(), false);
  }
  return add(request.at("id"), std::move(prompt), request.at("max_tokens"));
}

Status EngineProcess::add(const RequestId& id, std::vector<Token> prompt,
                          std::uint32_t max_tokens) {
  generations_[id] = {.prompt = prompt, .tokens = {}, .max_tokens = max_tokens, .end = {}};
  RequestInput input;
  input.id = id;
  input.prompt = std::move(prompt);
  input.max_tokens = max_tokens;
  input.ignore_eos = true;  // so that every comparison has the same length
  return stack_->core().add_request(std::move(input));
}

Result<Json> EngineProcess::generate(const Json& request) {
  if (Result<Json> submitted = submit(request); !submitted) return submitted;
  if (const Status ran = run_until([this] { return all_finished(); }); !ran) {
    return std::unexpected(ran.error());
  }
  if (request.value("flush", false)) {
    if (const Status flushed = flush(); !flushed) return std::unexpected(flushed.error());
  }
  return take_outputs();
}

Result<Json> EngineProcess::submit(const Json& request) {
  // What will be in flight during an update begins here: faults can be told by it.
  if (request.value("mark", false) && faulty_store_) faulty_store_->mark();
  for (const Json& item : request.at("requests")) {
    if (const Status added = add(item); !added) return std::unexpected(added.error());
  }
  const std::size_t wanted = request.value("until_output_tokens", std::size_t{0});
  const Status ran = run_until([&] { return output_tokens() >= wanted || all_finished(); });
  if (!ran) return std::unexpected(ran.error());
  return Json::object();
}

Result<Json> EngineProcess::collect() {
  const Status ran = run_until([this] { return all_finished(); });
  if (!ran) return std::unexpected(ran.error());
  return take_outputs();
}

bool EngineProcess::all_finished() const {
  for (const auto& [id, generation] : generations_) {
    if (!generation.end) return false;
  }
  return true;
}

std::size_t EngineProcess::output_tokens() const {
  std::size_t count = 0;
  for (const auto& [id, generation] : generations_) count += generation.tokens.size();
  return count;
}

Json EngineProcess::take_outputs() {
  Json outputs = Json::array();
  for (const auto& [id, generation] : generations_) outputs.push_back(output_json(id, generation));
  generations_.clear();
  return {{"outputs", outputs}};
}

// Until every block on its way to the store is there.
Status EngineProcess::flush() {
  const Time deadline = clock_.now() + kFlushTimeout;
  const Status ran = run_until([&] {
    return !stack_->core().scheduler().has_pending_push_work() || clock_.now() > deadline;
  });
  if (!ran) return ran;
  if (clock_.now() > deadline) return fail(Code::kDeadline, "saves did not end in time");
  return {};
}

// --- control ---

Json EngineProcess::timed(Time start, Json reply) const {
  reply["ms"] = to_ms(clock_.now() - start);
  return reply;
}

Result<Json> EngineProcess::pause(const Json& request) {
  const std::optional<PauseMode> mode = parse_pause_mode(request.at("mode").get<std::string>());
  if (!mode) return fail(Code::kBadRequest, "unknown pause mode");
  const Time start = clock_.now();
  const Duration timeout = *mode == PauseMode::kWait ? kWaitPauseTimeout : kPauseTimeout;
  // Shared, as the core may still answer when we no longer wait.
  const auto answer = std::make_shared<std::optional<PauseAnswer>>();
  stack_->core().pause_generation(*mode, request.at("clear_cache"), start + timeout,
                                  [answer](PauseAnswer given) { *answer = std::move(given); });
  const Status ran = run_until([answer] { return answer->has_value(); });
  if (!ran) return std::unexpected(ran.error());
  return timed(start, {{"complete", (*answer)->complete}});
}

Result<Json> EngineProcess::update(const Json& request) {
  const std::string name = request.at("weights");
  const Result<std::vector<WeightUpdate>> updates = weights_->updates_to(name);
  if (!updates) return std::unexpected(updates.error());
  const Time start = clock_.now();
  EngineCore& core = stack_->core();
  if (const Status started = core.start_weight_update(); !started) {
    return std::unexpected(started.error());
  }
  for (const WeightUpdate& update : *updates) {
    if (const Status done = core.update_weights(update); !done) {
      return std::unexpected(done.error());
    }
  }
  if (const Status finished = core.finish_weight_update(name); !finished) {
    return std::unexpected(finished.error());
  }
  weights_->note_current(name);
  return timed(start, Json::object());
}

Result<Json> EngineProcess::reset() {
  const Time start = clock_.now();
  const CacheResetAnswer answer = stack_->core().reset_caches(start + kPauseTimeout);
  Json steps = Json::object();
  for (const StepDuration& step : answer.steps)
    steps[std::string(step.name)] = to_ms(step.duration);
  return timed(start, {{"steps_ms", steps},
                       {"scope", to_string(answer.scope)},
                       {"success", answer.success},
                       {"degraded", answer.degraded}});
}

Result<Json> EngineProcess::resume() {
  const Time start = clock_.now();
  if (const Status resumed = stack_->core().resume_generation(); !resumed) {
    return std::unexpected(resumed.error());
  }
  // What the pause aborted goes on as a new request, from its tokens so far, as rollout
  // frameworks do.
  std::vector<std::pair<RequestId, Generation>> again;
  for (const auto& [id, generation] : generations_) {
    if (!generation.end || generation.end->status != RequestStatus::kFinishedAborted) continue;
    again.emplace_back(id + "-again", generation);
  }
  for (auto& [id, generation] : again) {
    std::vector<Token> prompt = generation.prompt;
    prompt.insert(prompt.end(), generation.tokens.begin(), generation.tokens.end());
    const auto left = generation.max_tokens - static_cast<std::uint32_t>(generation.tokens.size());
    if (const Status added = add(id, std::move(prompt), left); !added) {
      return std::unexpected(added.error());
    }
  }
  return timed(start, Json::object());
}

Json EngineProcess::stats() {
  Json ranks = Json::array();
  for (std::size_t r = 0; r < stack_->rank_count(); ++r) {
    const StoreWorkerStats stats = stack_->worker(r).stats();
    ranks.push_back({{"saved_blocks", stats.saved_blocks},
                     {"loaded_blocks", stats.loaded_blocks},
                     {"missing_blocks", stats.missing_blocks},
                     {"corrupt_blocks", stats.corrupt_blocks},
                     {"refused_jobs", stats.refused_jobs},
                     {"dropped_saves", stats.dropped_saves}});
  }
  return {{"ranks", ranks}};
}

}  // namespace

int run_engine_process(const EngineProcessOptions& options) {
  EngineProcess process(options);
  if (const Status started = process.start(); !started) {
    write_line(error_reply(started.error()));
    return 2;
  }
  write_line({{"ready", true}});
  process.serve();
  return 0;
}

}  // namespace newmoon
