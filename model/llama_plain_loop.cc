#include "model/llama_plain_loop.h"

#include <llama.h>

#include <utility>

namespace newmoon {
namespace {

llama_context_params params_of(const LlamaSessionOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.stream_tokens * options.stream_count;
  params.n_seq_max = options.stream_count;
  params.kv_unified = false;
  params.n_batch = options.rows_max;
  params.n_ubatch = options.rows_max;
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.no_perf = true;
  return params;
}

void add(llama_batch& batch, Token token, int position, int stream, bool wants_logits) {
  const int i = batch.n_tokens++;
  batch.token[i] = token;
  batch.pos[i] = position;
  batch.n_seq_id[i] = 1;
  batch.seq_id[i][0] = stream;
  batch.logits[i] = wants_logits;
}

// Leaves the batch empty.
Status decode(llama_context* context, llama_batch& batch) {
  const int code = llama_decode(context, batch);
  batch.n_tokens = 0;
  if (code == 0) return {};
  return fail(Code::kInternal,
              "llama_decode ended with " + std::to_string(code) + ": " + take_llama_error());
}

}  // namespace

void LlamaPlainLoop::SamplerDeleter::operator()(llama_sampler* sampler) const {
  llama_sampler_free(sampler);
}
void LlamaPlainLoop::BatchDeleter::operator()(llama_batch* batch) const {
  llama_batch_free(*batch);
  delete batch;
}

Result<std::unique_ptr<LlamaPlainLoop>> LlamaPlainLoop::create(const std::string& model_path,
                                                               const LlamaSessionOptions& options) {
  Result<LlamaModelPtr> model = load_llama_model(model_path, false);
  if (!model) return std::unexpected(model.error());
  LlamaContextPtr context(llama_init_from_model(model->get(), params_of(options)));
  if (context == nullptr) {
    return fail(Code::kBadRequest, "model " + model_path + ": " + take_llama_error());
  }
  return std::unique_ptr<LlamaPlainLoop>(
      new LlamaPlainLoop(options, std::move(*model), std::move(context)));
}

LlamaPlainLoop::LlamaPlainLoop(const LlamaSessionOptions& options, LlamaModelPtr model,
                               LlamaContextPtr context)
    : options_(options),
      model_(std::move(model)),
      context_(std::move(context)),
      sampler_(llama_sampler_init_greedy()),
      batch_(new llama_batch(llama_batch_init(options.rows_max, 0, 1))),
      next_(static_cast<std::size_t>(options.stream_count)) {}
LlamaPlainLoop::~LlamaPlainLoop() = default;

Status LlamaPlainLoop::prefill(std::span<const Token> prompt) {
  llama_memory_clear(llama_get_memory(context_.get()), false);
  for (int stream = 0; stream < options_.stream_count; ++stream) {
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      const bool last = i + 1 == prompt.size();
      add(*batch_, prompt[i], static_cast<int>(i), stream, last);
      if (batch_->n_tokens < options_.rows_max && !last) continue;
      if (Status done = decode(context_.get(), *batch_); !done) return done;
    }
    next_[stream] = llama_sampler_sample(sampler_.get(), context_.get(), -1);
  }
  length_ = static_cast<int>(prompt.size());
  return {};
}

Status LlamaPlainLoop::generate() {
  for (int stream = 0; stream < options_.stream_count; ++stream) {
    add(*batch_, next_[stream], length_, stream, true);
  }
  if (Status done = decode(context_.get(), *batch_); !done) return done;
  for (int stream = 0; stream < options_.stream_count; ++stream) {
    next_[stream] = llama_sampler_sample(sampler_.get(), context_.get(), stream);
  }
  ++length_;
  return {};
}

}  // namespace newmoon
