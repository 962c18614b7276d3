#include "model/llama_runner.h"

#include <llama.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "model/sampler.h"

namespace newmoon {
namespace {

// From 64 rows of a stream on, the attention kernel works in tiles and rounds
// otherwise (ggml-cpu/ops.cpp); at 32 every split into calls gives the same bits.
constexpr int kExactRowsMax = 32;
constexpr int kFastRowsMax = 512;
constexpr int kExactStepTokens = 128;
constexpr int kFastStepTokens = 512;

Status complete(LlamaOptions& options) {
  const bool exact = options.mode == LlamaMode::kExact;
  if (options.threads == 0) {
    options.threads = exact ? 1 : static_cast<int>(std::thread::hardware_concurrency());
  }
  if (exact && options.threads != 1) {
    return fail(Code::kBadRequest, "exact mode computes with 1 thread, not " +
                                       std::to_string(options.threads) + "; use fast mode");
  }
  if (options.step_tokens_max == 0) {
    options.step_tokens_max = exact ? kExactStepTokens : kFastStepTokens;
  }
  if (options.block_size < 1 || options.block_size > kExactRowsMax) {
    return fail(Code::kBadRequest, "block size " + std::to_string(options.block_size) + ": 1 to " +
                                       std::to_string(kExactRowsMax) + " tokens");
  }
  return {};
}

std::string slot_text(const SequenceStep& step) {
  return "sequence in slot " + std::to_string(step.slot) + ": ";
}

}  // namespace

LlamaRunner::~LlamaRunner() = default;

Result<std::unique_ptr<LlamaRunner>> LlamaRunner::load(LlamaOptions options) {
  if (Status valid = complete(options); !valid) return std::unexpected(valid.error());
  const std::string path = options.model_path;
  std::unique_ptr<LlamaRunner> runner(new LlamaRunner(std::move(options)));
  if (Status opened = runner->open_model(path); !opened) return std::unexpected(opened.error());
  return runner;
}

Status LlamaRunner::open_model(const std::string& path) {
  Result<LlamaModelPtr> model = load_llama_model(path, false);
  if (!model) return std::unexpected(model.error());
  Result<GgufFile> file = GgufFile::open(path);
  if (!file) return std::unexpected(file.error());

  model_ = std::move(*model);
  model_path_ = path;
  if (options_.context_tokens_max == 0) {
    options_.context_tokens_max = llama_model_n_ctx_train(model_.get());
  }
  Status ready = open_session();
  if (ready) {
    const ModelInfo info = describe(*file);
    if (!info_.layout.empty() && info.layout != info_.layout) {
      ready = fail(Code::kBadRequest, "model " + path +
                                          ": its KV is not like that of the model "
                                          "before; start an engine with it instead");
    }
    info_ = info;
  }
  if (ready) {
    Result<LlamaWeights> weights = LlamaWeights::create(session_->weights(), *file);
    if (weights) {
      weights_ = std::move(*weights);
      metadata_ = file->metadata();
    } else {
      ready = std::unexpected(weights.error());
    }
  }
  if (!ready) {
    session_.reset();
    model_.reset();
  }
  return ready;
}

Status LlamaRunner::open_session() {
  Result<std::unique_ptr<LlamaSession>> session =
      LlamaSession::create(model_.get(), {.threads = options_.threads,
                                          .rows_max = rows_max(),
                                          .block_size = options_.block_size,
                                          .stream_count = options_.sequences_max,
                                          .stream_tokens = options_.context_tokens_max});
  if (!session) {
    return fail(session.error().code, "model " + model_path_ + ": " + session.error().message);
  }
  session_ = std::move(*session);
  kv_layout_ = session_->kv().layout();
  return {};
}

ModelInfo LlamaRunner::describe(const GgufFile& file) const {
  const llama_vocab* vocab = llama_model_get_vocab(model_.get());
  const bool exact = options_.mode == LlamaMode::kExact;
  ModelInfo info;
  info.name = options_.model_path;
  info.vocab_size = llama_vocab_n_tokens(vocab);
  info.context_tokens_max = options_.context_tokens_max;
  info.layer_count = llama_model_n_layer(model_.get());
  info.block_size = options_.block_size;
  info.sequences_max = options_.sequences_max;
  info.step_tokens_max = options_.step_tokens_max;
  info.end_of_sequence = llama_vocab_eos(vocab);
  // The context, since LongRoPE turns positions by how long it may get, not by how long it is.
  info.layout = llama_build_text() + "; model " + to_hex(file.metadata_digest()).substr(0, 16) +
                ", " + std::to_string(info.layer_count) + " layers; block of " +
                std::to_string(options_.block_size) + " tokens, " +
                std::to_string(kv_layout_.block_bytes()) + " bytes, K then V, f16; " +
                (exact ? "exact" : "fast") + ", flash attention, " +
                std::to_string(options_.threads) + " threads, " + std::to_string(rows_max()) +
                " rows, context of " + std::to_string(options_.context_tokens_max) + " tokens";
  return info;
}

int LlamaRunner::rows_max() const {
  return options_.mode == LlamaMode::kExact ? kExactRowsMax : kFastRowsMax;
}

std::size_t LlamaRunner::rows_min() const {
  if (options_.mode == LlamaMode::kFast) return 1;
  return adapter_ || !weights_->exact_by_row() ? 2 : 1;
}

Status LlamaRunner::attach(KvArena* arena) {
  if (arena != nullptr && (arena->layout().k_layer_bytes != kv_layout_.k_layer_bytes ||
                           arena->layout().v_layer_bytes != kv_layout_.v_layer_bytes)) {
    return fail(Code::kBadRequest,
                "KV memory has blocks of " + std::to_string(arena->block_bytes()) +
                    " bytes, the model wants " + std::to_string(kv_layout_.block_bytes()));
  }
  arena_ = arena;
  return {};
}

Status LlamaRunner::check_awake() const {
  if (weights_broken_) {
    return fail(Code::kInternal,
                "model " + model_path_ + ": loading it ended half-way; load a GGUF to go on");
  }
  if (session_ == nullptr) return fail(Code::kUnavailable, "the model is asleep; wake it up");
  return {};
}

Status LlamaRunner::check(const StepInput& input) const {
  if (Status awake = check_awake(); !awake) return awake;
  if (arena_ == nullptr) return fail(Code::kBadRequest, "the model has no KV memory attached");
  std::set<int> slots;
  for (const SequenceStep& step : input.sequences) {
    if (Status good = check(step); !good) return good;
    if (!slots.insert(step.slot).second) {
      return fail(Code::kBadRequest, slot_text(step) + "named twice in one step");
    }
  }
  return {};
}

Status LlamaRunner::check(const SequenceStep& step) const {
  const auto refuse = [&](const std::string& text) {
    return fail(Code::kBadRequest, slot_text(step) + text);
  };
  const std::size_t end = step.num_computed_tokens + step.tokens.size();
  const std::size_t block_size = static_cast<std::size_t>(options_.block_size);
  if (step.slot < 0 || step.slot >= info_.sequences_max) {
    return refuse("there are " + std::to_string(info_.sequences_max) + " slots");
  }
  if (step.tokens.empty()) return refuse("no token to compute");
  if (end > static_cast<std::size_t>(info_.context_tokens_max)) {
    return refuse(std::to_string(end) + " tokens are more than the context of " +
                  std::to_string(info_.context_tokens_max) +
                  "; shorten the prompt or raise the context");
  }
  const auto known = [&](Token token) { return token >= 0 && token < info_.vocab_size; };
  if (!std::ranges::all_of(step.tokens, known)) return refuse("a token is not in the vocabulary");
  if (step.restart && step.num_computed_tokens % block_size != 0) {
    return refuse("restarts in the middle of a block");
  }
  const int length = session_->kv().length(step.slot);
  if (!step.restart && static_cast<std::size_t>(length) != step.num_computed_tokens) {
    return refuse("holds " + std::to_string(length) + " tokens, not the " +
                  std::to_string(step.num_computed_tokens) + " to go on from");
  }
  if (step.blocks.size() < end / block_size) return refuse("its block table is too short");
  const auto exists = [&](BlockId block) {
    return block > kNullBlock && static_cast<std::size_t>(block) < arena_->block_count();
  };
  if (!std::ranges::all_of(step.blocks, exists)) return refuse("its block table is wrong");
  return {};
}

Result<StepOutput> LlamaRunner::execute(const StepInput& input) {
  if (Status good = check(input); !good) return std::unexpected(good.error());
  for (const SequenceStep& step : input.sequences) {
    if (!step.restart) continue;
    if (Status done = restart(step); !done) return std::unexpected(done.error());
  }
  StepOutput output;
  output.sampled.resize(input.sequences.size());
  for (const ModelCall& call : plan_calls(input, static_cast<std::size_t>(rows_max()))) {
    if (Status done = run(call, input, output); !done) return std::unexpected(done.error());
  }
  return output;
}

Status LlamaRunner::restart(const SequenceStep& step) {
  std::vector<Fragment> context;
  const std::size_t count = step.num_computed_tokens / options_.block_size;
  context.reserve(count);
  for (std::size_t i = 0; i < count; ++i) context.push_back(arena_->block(step.blocks[i]));
  return session_->kv().import_blocks(step.slot, context);
}

std::vector<LlamaRow> LlamaRunner::rows_of(const ModelCall& call, const StepInput& input) const {
  std::vector<LlamaRow> rows;
  rows.reserve(call.rows() + 1);
  for (const ModelCall::Part& part : call.parts) {
    const SequenceStep& step = input.sequences[part.sequence];
    for (std::size_t i = part.first_token; i < part.first_token + call.tokens_each; ++i) {
      const bool last = i + 1 == step.tokens.size();
      rows.push_back({.token = step.tokens[i],
                      .position = static_cast<int>(step.num_computed_tokens + i),
                      .stream = step.slot,
                      .wants_logits = last && step.sampling != nullptr});
    }
  }
  return rows;
}

// Where one row would be computed by another path than several, there are always two:
// in the call and, as the last layer goes on with those only, among the rows that want
// logits. The row added is the next position of a stream that is in the call anyway,
// where nothing attends to it, and is cut off again.
Status LlamaRunner::decode(std::vector<LlamaRow> rows) {
  const std::size_t wanted = rows.size();
  if (rows.size() < rows_min()) {
    LlamaRow padding = rows.back();
    ++padding.position;
    rows.push_back(padding);
  }
  if (std::ranges::count_if(rows, &LlamaRow::wants_logits) == 1 && rows_min() > 1) {
    std::ranges::find_if_not(rows, &LlamaRow::wants_logits)->wants_logits = true;
  }
  const Status decoded = session_->decode(rows);
  if (rows.size() > wanted) session_->kv().truncate(rows.back().stream, rows.back().position);
  return decoded;
}

Status LlamaRunner::run(const ModelCall& call, const StepInput& input, StepOutput& output) {
  if (Status decoded = decode(rows_of(call, input)); !decoded) return decoded;
  for (std::size_t i = 0; i < call.parts.size(); ++i) {
    const ModelCall::Part& part = call.parts[i];
    const SequenceStep& step = input.sequences[part.sequence];
    export_full_blocks(step, part.first_token, call.tokens_each);
    const bool last = part.first_token + call.tokens_each == step.tokens.size();
    if (!last || step.sampling == nullptr) continue;
    const std::span<const float> logits = session_->logits((i + 1) * call.tokens_each - 1);
    if (observer_) observer_(step.slot, logits);
    output.sampled[part.sequence] = sample(logits, *step.sampling, step.sample_index);
  }
  return {};
}

void LlamaRunner::export_full_blocks(const SequenceStep& step, std::size_t first_token,
                                     std::size_t count) {
  const std::size_t begin = step.num_computed_tokens + first_token;
  const std::size_t block_size = static_cast<std::size_t>(options_.block_size);
  for (std::size_t i = begin / block_size; i < (begin + count) / block_size; ++i) {
    session_->kv().export_block(step.slot, static_cast<int>(i), arena_->block(step.blocks[i]));
  }
}

}  // namespace newmoon
