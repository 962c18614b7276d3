#include "cli/bench_model.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/random.h"
#include "cli/statistics.h"
#include "model/kv_arena.h"
#include "model/llama_plain_loop.h"
#include "model/llama_runner.h"

namespace newmoon {
namespace {

constexpr std::size_t kBlockSize = 16;
constexpr std::size_t kHitTokens = 94 * kBlockSize;
constexpr std::size_t kPromptTokens = kHitTokens + kBlockSize;
constexpr std::size_t kShortPromptTokens = 64;
constexpr int kContextTokens = 2048;
constexpr int kSequences = 4;
constexpr double kMegabyte = 1e6;

struct Mode {
  LlamaMode mode;
  std::string name;
};

// Of `work`, in ms; its error if it has one.
Result<double> timed(const std::function<Status()>& work) {
  const auto start = std::chrono::steady_clock::now();
  if (Status done = work(); !done) return std::unexpected(done.error());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

struct Medians {
  double value_ms = 0;
  double peer_ms = 0;
};
// The peer first: where both use the same blocks, it fills them.
Result<Medians> interleaved(int runs, const std::function<Status()>& value,
                            const std::function<Status()>& peer) {
  std::vector<double> values;
  std::vector<double> peers;
  for (int run = 0; run < runs; ++run) {
    const Result<double> peer_ms = timed(peer);
    if (!peer_ms) return std::unexpected(peer_ms.error());
    const Result<double> value_ms = timed(value);
    if (!value_ms) return std::unexpected(value_ms.error());
    values.push_back(*value_ms);
    peers.push_back(*peer_ms);
  }
  return Medians{.value_ms = median(values), .peer_ms = median(peers)};
}

double resident_megabytes() {
  std::ifstream statm("/proc/self/statm");
  double total_pages = 0;
  double resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / kMegabyte;
}

std::vector<Token> prompt_of(std::size_t count, int vocab_size) {
  SeededRandom random(1);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.below(vocab_size));
  return tokens;
}

// A runner with its blocks, and the one thing the cases do with it.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> create(const ModelBenchOptions& options, LlamaMode mode) {
    const double resident_before = resident_megabytes();
    auto runner = LlamaRunner::load({.model_path = options.model_path,
                                     .mode = mode,
                                     .threads = mode == LlamaMode::kFast ? options.threads : 1,
                                     .context_tokens_max = kContextTokens,
                                     .sequences_max = kSequences});
    if (!runner) return std::unexpected(runner.error());
    auto arena = KvArena::create((*runner)->kv_layout(), 1 + kSequences * kContextTokens / 16);
    if (!arena) return std::unexpected(arena.error());
    if (Status attached = (*runner)->attach(arena->get()); !attached) {
      return std::unexpected(attached.error());
    }
    return std::make_unique<Bench>(std::move(*runner), std::move(*arena), resident_before);
  }
  Bench(std::unique_ptr<LlamaRunner> runner, std::unique_ptr<KvArena> arena, double resident_before)
      : runner_(std::move(runner)), arena_(std::move(arena)), resident_before_(resident_before) {}

  int vocab_size() const { return runner_->info().vocab_size; }

  // The first token after `prompt`, of which the first `hit` tokens lie in its blocks.
  Status first_token(int slot, const std::vector<Token>& prompt, std::size_t hit) {
    SequenceStep step = {.slot = slot,
                         .restart = true,
                         .num_computed_tokens = static_cast<std::uint32_t>(hit),
                         .tokens = {},
                         .blocks = blocks_of(slot)};
    const std::size_t budget = static_cast<std::size_t>(runner_->info().step_tokens_max);
    while (step.num_computed_tokens < prompt.size()) {
      const std::size_t first = step.num_computed_tokens;
      const std::size_t last = std::min(prompt.size(), first + budget);
      step.tokens.assign(prompt.begin() + first, prompt.begin() + last);
      step.sampling = last == prompt.size() ? &greedy_ : nullptr;
      const Result<StepOutput> output = runner_->execute({.sequences = {step}});
      if (!output) return std::unexpected(output.error());
      if (output->sampled[0]) next_[slot] = output->sampled[0]->token;
      step.restart = false;
      step.num_computed_tokens = static_cast<std::uint32_t>(last);
    }
    length_[slot] = prompt.size();
    return {};
  }

  // One token more of each of the first `count` slots.
  Status generate(int count) {
    StepInput input;
    for (int slot = 0; slot < count; ++slot) {
      input.sequences.push_back({.slot = slot,
                                 .restart = false,
                                 .num_computed_tokens = static_cast<std::uint32_t>(length_[slot]),
                                 .tokens = {next_[slot]},
                                 .blocks = blocks_of(slot),
                                 .sampling = &greedy_});
    }
    const Result<StepOutput> output = runner_->execute(input);
    if (!output) return std::unexpected(output.error());
    for (int slot = 0; slot < count; ++slot) {
      next_[slot] = output->sampled[slot]->token;
      ++length_[slot];
    }
    return {};
  }

  ModelBenchRow memory_row(const ModelBenchOptions& options, const std::string& mode) const {
    const double streams =
        static_cast<double>(arena_->block_bytes()) / kBlockSize * kContextTokens * kSequences;
    ModelBenchRow row{.case_name = "resident_memory_" + mode};
    row.value = resident_megabytes() - resident_before_;
    row.peer = (static_cast<double>(std::filesystem::file_size(options.model_path)) + streams +
                static_cast<double>(arena_->bytes())) /
               kMegabyte;
    row.ratio = row.value - row.peer;
    return row;
  }

 private:
  static std::vector<BlockId> blocks_of(int slot) {
    std::vector<BlockId> blocks;
    for (int i = 0; i < kContextTokens / 16; ++i) {
      blocks.push_back(1 + slot * kContextTokens / 16 + i);
    }
    return blocks;
  }

  const std::unique_ptr<LlamaRunner> runner_;
  const std::unique_ptr<KvArena> arena_;
  const double resident_before_;
  const SamplingParams greedy_;
  Token next_[kSequences] = {};
  std::size_t length_[kSequences] = {};
};

Result<ModelBenchRow> first_token_row(Bench& bench, const ModelBenchOptions& options,
                                      const std::string& mode) {
  const std::vector<Token> prompt = prompt_of(kPromptTokens, bench.vocab_size());
  const auto from = [&](std::size_t hit) { return bench.first_token(0, prompt, hit); };
  const Result<Medians> ms =
      interleaved(options.runs, [&] { return from(kHitTokens); }, [&] { return from(0); });
  if (!ms) return std::unexpected(ms.error());
  return ModelBenchRow{.case_name = "first_token_hit_" + mode,
                       .value = ms->value_ms,
                       .peer = ms->peer_ms,
                       .ratio = ms->peer_ms / ms->value_ms};
}

Result<ModelBenchRow> generate_row(Bench& bench, LlamaPlainLoop& plain, int count,
                                   const ModelBenchOptions& options, const std::string& mode) {
  const std::vector<Token> prompt = prompt_of(kShortPromptTokens, bench.vocab_size());
  for (int slot = 0; slot < count; ++slot) {
    if (Status done = bench.first_token(slot, prompt, 0); !done) {
      return std::unexpected(done.error());
    }
  }
  if (Status done = plain.prefill(prompt); !done) return std::unexpected(done.error());
  const Result<Medians> ms = interleaved(
      options.generated_tokens, [&] { return bench.generate(count); },
      [&] { return plain.generate(); });
  if (!ms) return std::unexpected(ms.error());
  const double tokens = 1000.0 * count;
  return ModelBenchRow{.case_name = "generate_" + std::to_string(count) + "_" + mode,
                       .value = tokens / ms->value_ms,
                       .peer = tokens / ms->peer_ms,
                       .ratio = ms->peer_ms / ms->value_ms};
}

Status bench_mode(const ModelBenchOptions& options, const Mode& mode,
                  std::vector<ModelBenchRow>& rows) {
  auto bench = Bench::create(options, mode.mode);
  if (!bench) return std::unexpected(bench.error());
  Result<ModelBenchRow> row = first_token_row(**bench, options, mode.name);
  if (!row) return std::unexpected(row.error());
  rows.push_back(*row);
  rows.push_back((*bench)->memory_row(options, mode.name));
  const bool fast = mode.mode == LlamaMode::kFast;
  for (const int count : {1, kSequences}) {
    auto plain = LlamaPlainLoop::create(options.model_path, {.threads = fast ? options.threads : 1,
                                                             .rows_max = fast ? 512 : 32,
                                                             .stream_count = count,
                                                             .stream_tokens = kContextTokens});
    if (!plain) return std::unexpected(plain.error());
    row = generate_row(**bench, **plain, count, options, mode.name);
    if (!row) return std::unexpected(row.error());
    rows.push_back(*row);
  }
  return {};
}

}  // namespace

Result<std::vector<ModelBenchRow>> bench_model(const ModelBenchOptions& wanted) {
  ModelBenchOptions options = wanted;
  if (options.threads == 0) {
    options.threads = static_cast<int>(std::thread::hardware_concurrency());
  }
  std::vector<ModelBenchRow> rows;
  for (const Mode& mode : {Mode{LlamaMode::kExact, "exact"}, Mode{LlamaMode::kFast, "fast"}}) {
    if (Status done = bench_mode(options, mode, rows); !done) {
      return std::unexpected(done.error());
    }
  }
  return rows;
}

}  // namespace newmoon
