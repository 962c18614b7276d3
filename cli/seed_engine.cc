#include "cli/seed_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace newmoon {
namespace {

constexpr std::size_t kBlockCount = 128;
constexpr Duration kRunTimeout = std::chrono::seconds(60);
constexpr Duration kResetTimeout = std::chrono::seconds(5);
constexpr Duration kValuesTimeout = std::chrono::seconds(30);

TestModelRunner::Options model_of(const SeedEngine::Options& options) {
  TestModelRunner::Options model;
  model.layer_count = static_cast<int>(std::max(options.layers, options.ranks));
  model.weights = SeedEngine::kFirstWeights;
  return model;
}

}  // namespace

SeedEngine::SeedEngine(const Options& options, KvStore& store, SeedTrace& trace)
    : options_(options),
      model_(model_of(options)),
      store_(store),
      faulty_(store_, {}, clock_, random_),
      traced_(faulty_, trace) {}

Result<std::unique_ptr<SeedEngine>> SeedEngine::start(const Options& options, KvStore& store,
                                                      SeedTrace& trace) {
  std::unique_ptr<SeedEngine> engine(new SeedEngine(options, store, trace));
  if (const Status opened = engine->open(trace); !opened) return std::unexpected(opened.error());
  return engine;
}

Status SeedEngine::open(SeedTrace& trace) {
  Result<std::unique_ptr<KvArena>> arena =
      KvArena::create(TestModelRunner::kv_layout(model_), kBlockCount);
  if (!arena) return std::unexpected(arena.error());
  arena_ = std::move(*arena);
  runner_ = std::make_unique<TestModelRunner>(model_, *arena_);

  EngineStack::Options stack;
  stack.core.identity = options_.identity;
  stack.core.name_space = options_.name_space;
  stack.core.weight_version = std::to_string(kFirstWeights);
  stack.reset_mode = options_.reset_mode;
  stack.exclusive_store = true;
  stack.rank_count = options_.ranks;
  const auto wrap = [&](std::unique_ptr<ClientTransport> inner) {
    return std::make_unique<TracedTransport>(std::move(inner), trace, channel_is_broken_);
  };
  Result<std::unique_ptr<EngineStack>> started =
      EngineStack::start(stack, {.runner = *runner_,
                                 .arena = *arena_,
                                 .store = options_.connector ? &traced_ : nullptr,
                                 .clock = clock_,
                                 .random = random_,
                                 .wrap_transport = wrap});
  if (!started) return std::unexpected(started.error());
  stack_ = std::move(*started);
  return {};
}

std::uint64_t SeedEngine::values_in_store() {
  const Result<StoreStats> stats = store_.stats();
  return stats ? stats->blocks : std::numeric_limits<std::uint64_t>::max();
}

std::uint64_t SeedEngine::wait_for_values(std::uint64_t count) {
  const Time deadline = in(kValuesTimeout);
  while (values_in_store() != count && clock_.now() < deadline) {
    idle();
  }
  return values_in_store();
}

// --- requests ---

std::vector<Token> SeedEngine::prompt(int number) {
  std::vector<Token> tokens;
  for (int i = 0; i < 24; ++i) tokens.push_back((number * 31 + i * 7) % 97);
  return tokens;
}

Status SeedEngine::add(const RequestId& id, const std::vector<Token>& prompt,
                       std::uint32_t max_tokens) {
  generations_.erase(id);
  RequestInput input;
  input.id = id;
  input.prompt = prompt;
  input.max_tokens = max_tokens;
  input.ignore_eos = true;
  return core().add_request(std::move(input));
}

void SeedEngine::step() {
  const std::vector<RequestOutput> outputs = core().step();
  for (const RequestOutput& output : outputs) {
    SeedGeneration& generation = generations_[output.id];
    for (const SampledToken& sampled : output.tokens) generation.tokens.push_back(sampled.token);
    if (output.finished) generation.end = output;
  }
  // Only lookups, loads or saves are under way: let their threads at it.
  if (outputs.empty()) idle();
}

void SeedEngine::run() {
  const Time deadline = in(kRunTimeout);
  while (core().has_work() && clock_.now() < deadline) step();
}

const SeedGeneration& SeedEngine::generate(const RequestId& id, const std::vector<Token>& prompt) {
  if (const Status added = add(id, prompt, kMaxTokens); !added) {
    generations_[id].end.error = added.error().message;
    return generations_[id];
  }
  run();
  return generations_[id];
}

std::vector<Token> SeedEngine::cold(std::uint64_t weights, const std::vector<Token>& prompt,
                                    std::size_t count) const {
  return TestModelRunner::cold_tokens(model_, weights, prompt, count);
}

// --- control ---

PauseAnswer SeedEngine::pause_and_clear() {
  std::optional<PauseAnswer> answer;
  core().pause_generation(PauseMode::kAbort, true, in(kResetTimeout),
                          [&answer](PauseAnswer given) { answer = std::move(given); });
  while (!answer) step();
  (void)core().resume_generation();  // can only fail while asleep
  return *answer;
}

Status SeedEngine::update_weights(std::uint64_t weights) {
  if (const Status started = core().start_weight_update(); !started) return started;
  if (const Status written = core().update_weights(TestModelRunner::set_weights(weights));
      !written) {
    return written;
  }
  return core().finish_weight_update(std::to_string(weights));
}

}  // namespace newmoon
