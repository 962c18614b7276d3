#include "model/llama_session.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace newmoon {
namespace {

// Cells behind the longest sequence for rows that are cut off again: the padding of
// LlamaRunner and the probe.
constexpr int kSpareCells = 2;

llama_context_params params_of(const LlamaSessionOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = (options.stream_tokens + kSpareCells) * options.stream_count;
  params.n_seq_max = options.stream_count;
  params.kv_unified = false;
  params.n_batch = options.rows_max;
  params.n_ubatch = options.rows_max;
  // Logits are large; a call wants one row of each stream and the padding's at most.
  params.n_outputs_max = std::min(options.rows_max, options.stream_count + 1);
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = GGML_TYPE_F16;
  params.type_v = GGML_TYPE_F16;
  params.no_perf = true;
  return params;
}

Status check_figures(const llama_model* model, const LlamaSessionOptions& options) {
  const auto refuse = [](std::string message) {
    return fail(Code::kBadRequest, std::move(message));
  };
  const int trained = llama_model_n_ctx_train(model);
  if (options.stream_tokens < options.block_size || options.stream_tokens > trained) {
    return refuse("context of " + std::to_string(options.stream_tokens) +
                  " tokens: the model takes " + std::to_string(options.block_size) + " to " +
                  std::to_string(trained));
  }
  const int streams_max = static_cast<int>(llama_max_parallel_sequences());
  if (options.stream_count < 1 || options.stream_count > streams_max) {
    return refuse(std::to_string(options.stream_count) + " sequences at a time: 1 to " +
                  std::to_string(streams_max) + " are possible");
  }
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model) ||
      llama_model_has_encoder(model) || llama_model_n_swa(model) > 0) {
    return refuse(
        "the model's attention is not a plain causal one over all tokens (recurrent, "
        "sliding window or encoder): its KV is not made of blocks, use another model");
  }
  return {};
}

// An upper bound (as if there were no grouped heads it would be n_head times more).
std::uint64_t kv_bytes(const llama_model* model, const LlamaSessionOptions& options) {
  const std::uint64_t row = 2ull * sizeof(ggml_fp16_t) * llama_model_n_embd(model) *
                            llama_model_n_head_kv(model) / llama_model_n_head(model);
  return row * llama_model_n_layer(model) * (options.stream_tokens + kSpareCells) *
         options.stream_count;
}

std::uint64_t machine_bytes() {
  return static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// A batch for one decode, over arrays of its own.
class Batch {
 public:
  explicit Batch(std::span<const LlamaRow> rows)
      : batch_(llama_batch_init(static_cast<int>(rows.size()), 0, 1)) {
    for (const LlamaRow& row : rows) {
      const int i = batch_.n_tokens++;
      batch_.token[i] = row.token;
      batch_.pos[i] = row.position;
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = row.stream;
      batch_.logits[i] = row.wants_logits;
    }
  }
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace

// Sees every node of the graph before it runs (cb_eval), which is how tensors that
// llama.h does not hand out are found: weights by the use of their buffer, an adapter's
// and the caches by the names that llama-adapter.cpp and llama-kv-cache.cpp give them.
class LlamaSession::Watch {
 public:
  bool on = false;
  LlamaTensors weights;
  LlamaTensors adapter;
  LlamaTensors caches;

  static bool callback(ggml_tensor* node, bool /*ask*/, void* self) {
    auto* const watch = static_cast<Watch*>(self);
    if (watch->on) watch->see(node);
    return false;  // the node's result is not wanted
  }

 private:
  void see(const ggml_tensor* node) {
    for (ggml_tensor* source : node->src) {
      if (source == nullptr || source->op != GGML_OP_NONE || source->buffer == nullptr) continue;
      const std::string_view name = ggml_get_name(source);
      if (name.ends_with(".lora_a") || name.ends_with(".lora_b")) {
        adapter[std::string(name)] = source;
      } else if (ggml_backend_buffer_get_usage(source->buffer) ==
                 GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
        weights[std::string(name)] = source;
      }
    }
    if (node->op == GGML_OP_SET_ROWS && node->view_src != nullptr) {
      caches[ggml_get_name(node->view_src)] = node->view_src;
    }
  }
};

LlamaSession::LlamaSession(const LlamaSessionOptions& options, int vocab_size)
    : options_(options), vocab_size_(vocab_size), watch_(std::make_unique<Watch>()) {}
LlamaSession::~LlamaSession() = default;

Result<std::unique_ptr<LlamaSession>> LlamaSession::create(llama_model* model,
                                                           const LlamaSessionOptions& options) {
  if (Status fits = check_figures(model, options); !fits) return std::unexpected(fits.error());
  const auto too_large = [&](const std::string& reason) {
    return fail(Code::kBadRequest, "KV of " + std::to_string(options.stream_count) +
                                       " sequences of " + std::to_string(options.stream_tokens) +
                                       " tokens is " +
                                       std::to_string(kv_bytes(model, options) >> 20) + " MiB, " +
                                       reason + "; ask for fewer sequences or a shorter context");
  };
  if (kv_bytes(model, options) > machine_bytes()) return too_large("more than this machine has");

  std::unique_ptr<LlamaSession> session(
      new LlamaSession(options, llama_vocab_n_tokens(llama_model_get_vocab(model))));
  llama_context_params params = params_of(options);
  params.cb_eval = Watch::callback;
  params.cb_eval_user_data = session->watch_.get();
  take_llama_error();
  session->context_.reset(llama_init_from_model(model, params));
  if (session->context_ == nullptr) {
    return too_large("llama.cpp says: " + take_llama_error());
  }
  // One block's worth of tokens finds the tensors and is what the self-test needs.
  session->watch_->on = true;
  Status ready = session->probe(options.block_size);
  session->watch_->on = false;
  if (ready) ready = session->find_caches(llama_model_n_layer(model));
  if (ready) ready = session->kv_->self_test();
  if (!ready) return std::unexpected(ready.error());
  session->weights_ = std::exchange(session->watch_->weights, {});
  return session;
}

Status LlamaSession::find_caches(int layer_count) {
  std::vector<LlamaKv::Layer> layers;
  for (int i = 0; i < layer_count; ++i) {
    const auto k = watch_->caches.find("cache_k_l" + std::to_string(i));
    const auto v = watch_->caches.find("cache_v_l" + std::to_string(i));
    if (k == watch_->caches.end() || v == watch_->caches.end()) {
      return fail(Code::kInternal, "llama.cpp keeps no KV of layer " + std::to_string(i) +
                                       " that this build can find; the model's attention may "
                                       "not be supported, use another model");
    }
    layers.push_back({.k = k->second, .v = v->second});
  }
  kv_ = std::make_unique<LlamaKv>(context_.get(), std::move(layers), options_.block_size,
                                  options_.stream_count);
  return {};
}

Status LlamaSession::probe(int tokens) {
  const int length = kv_ == nullptr ? 0 : kv_->length(0);
  std::vector<LlamaRow> rows;
  rows.reserve(static_cast<std::size_t>(tokens));
  for (int i = 0; i < tokens; ++i) {
    rows.push_back({.token = i % vocab_size_, .position = length + i, .stream = 0});
  }
  rows.back().wants_logits = true;
  return decode(rows);
}

Status LlamaSession::decode(std::span<const LlamaRow> rows) {
  const Batch batch(rows);
  take_llama_error();
  const int code = llama_decode(context_.get(), batch.get());
  if (code == 0) return {};
  return fail(Code::kInternal, "llama_decode of " + std::to_string(rows.size()) +
                                   " tokens ended with " + std::to_string(code) + ": " +
                                   take_llama_error());
}

std::span<const float> LlamaSession::logits(std::size_t row) const {
  return {llama_get_logits_ith(context_.get(), static_cast<int>(row)),
          static_cast<std::size_t>(vocab_size_)};
}

void LlamaSession::set_adapter(llama_adapter_lora* adapter, float scale) {
  llama_set_adapters_lora(context_.get(), &adapter, adapter == nullptr ? 0 : 1, &scale);
}

Result<LlamaTensors> LlamaSession::adapter_tensors() {
  const int length = kv_->length(0);
  watch_->on = true;
  const Status probed = probe(2);
  watch_->on = false;
  kv_->truncate(0, length);
  LlamaTensors tensors = std::exchange(watch_->adapter, {});
  if (!probed) return std::unexpected(probed.error());
  return tensors;
}

}  // namespace newmoon
