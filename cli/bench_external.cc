#include "cli/bench_external.h"

#include <memory>

#include "cli/statistics.h"
#include "engine/engine_stack.h"
#include "model/llama_runner.h"
#include "store/memory_store.h"

namespace newmoon {
namespace {

constexpr std::uint32_t kPromptTokens = 1520;
constexpr std::size_t kBlockCount = 256;
constexpr std::uint64_t kStoreBytes = std::uint64_t{1} << 30;
constexpr Duration kPatience = std::chrono::minutes(5);

class Bench {
 public:
  Status start(const std::string& model_path);
  // The time to the one token of the prompt; `external_hit_tokens` says what was loaded.
  Result<Duration> first_token(std::uint64_t& external_hit_tokens);
  // The local cache goes, the store stays.
  void forget_locally() {
    stack_->core().reset_prefix_cache(true, false, clock_.now() + kPatience, true);
  }
  // The store goes as well.
  Status forget_everywhere() {
    forget_locally();
    const Result<std::uint64_t> removed = store_.remove_all();
    return removed ? Status{} : std::unexpected(removed.error());
  }
  Status flush();

 private:
  SystemClock clock_;
  SystemRandom random_;
  ThreadExecutor frees_{"nm-frees"};
  MemoryStore store_{{.budget_bytes = kStoreBytes}, clock_, frees_};
  std::unique_ptr<LlamaRunner> runner_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<EngineStack> stack_;
  int requests_ = 0;
};

Status Bench::start(const std::string& model_path) {
  auto runner = LlamaRunner::load({.model_path = model_path, .context_tokens_max = 2048});
  if (!runner) return std::unexpected(runner.error());
  runner_ = std::move(*runner);
  auto arena = KvArena::create(runner_->kv_layout(), kBlockCount);
  if (!arena) return std::unexpected(arena.error());
  arena_ = std::move(*arena);
  if (const Status attached = runner_->attach(arena_.get()); !attached) return attached;
  EngineStack::Options options;
  options.core.identity = IdentityMode::kDigest;
  auto stack = EngineStack::start(options, {.runner = *runner_,
                                            .arena = *arena_,
                                            .store = &store_,
                                            .clock = clock_,
                                            .random = random_,
                                            .wrap_transport = {}});
  if (!stack) return std::unexpected(stack.error());
  stack_ = std::move(*stack);
  return {};
}

Result<Duration> Bench::first_token(std::uint64_t& external_hit_tokens) {
  RequestInput input;
  input.id = "bench-" + std::to_string(requests_++);
  for (std::uint32_t i = 0; i < kPromptTokens; ++i) {
    input.prompt.push_back(static_cast<Token>(1000 + i * 7 % 20000));
  }
  input.max_tokens = 1;
  input.ignore_eos = true;
  const Time start = clock_.now();
  if (const Status added = stack_->core().add_request(std::move(input)); !added) {
    return std::unexpected(added.error());
  }
  while (clock_.now() < start + kPatience) {
    for (const RequestOutput& output : stack_->core().step()) {
      if (!output.finished) continue;
      external_hit_tokens = output.counters.external_hit_tokens;
      return clock_.now() - start;
    }
  }
  return fail(Code::kDeadline, "no token came");
}

Status Bench::flush() {
  const Time deadline = clock_.now() + kPatience;
  while (stack_->core().scheduler().has_pending_push_work()) {
    if (clock_.now() > deadline) return fail(Code::kDeadline, "saves did not end");
    stack_->core().step();
    stack_->executor().wait(deadline);
  }
  return {};
}

}  // namespace

Result<ModelBenchRow> bench_external_hit(const ModelBenchOptions& options) {
  Bench bench;
  if (const Status started = bench.start(options.model_path); !started) {
    return std::unexpected(started.error());
  }
  std::vector<Duration> computed;
  std::vector<Duration> loaded;
  for (int run = 0; run < options.runs; ++run) {
    if (const Status gone = bench.forget_everywhere(); !gone) return std::unexpected(gone.error());
    std::uint64_t hit = 0;
    const Result<Duration> cold = bench.first_token(hit);
    if (!cold) return std::unexpected(cold.error());
    if (hit != 0) return fail(Code::kInternal, "a prompt that should be computed was loaded");
    if (const Status flushed = bench.flush(); !flushed) return std::unexpected(flushed.error());
    bench.forget_locally();
    const Result<Duration> warm = bench.first_token(hit);
    if (!warm) return std::unexpected(warm.error());
    if (hit < kPromptTokens - 32) return fail(Code::kInternal, "the prompt was not loaded");
    computed.push_back(*cold);
    loaded.push_back(*warm);
  }
  const double value = to_ms(median(loaded));
  const double peer = to_ms(median(computed));
  return ModelBenchRow{"first_token_external_exact", value, peer, peer / value};
}

}  // namespace newmoon
