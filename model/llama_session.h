// A llama.cpp context: streams of KV and the forward pass over them. The adapter in
// force belongs to it, the weights do not.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "hash/block_hash.h"
#include "model/llama_kv.h"
#include "model/llama_library.h"

struct ggml_tensor;

namespace newmoon {

struct LlamaSessionOptions {
  int threads = 1;
  int rows_max = 32;  // of one decode; llama.cpp's n_ubatch
  int block_size = 16;
  int stream_count = 1;
  int stream_tokens = 0;  // the longest sequence
};

struct LlamaRow {
  Token token = 0;
  int position = 0;
  int stream = 0;
  bool wants_logits = false;
};

using LlamaTensors = std::map<std::string, ggml_tensor*>;

// One thread at a time. Borrows the model.
class LlamaSession {
 public:
  // kBadRequest: the figures do not fit the model or this machine. kInternal: this
  // build does not understand its llama.cpp (LlamaKv::self_test).
  static Result<std::unique_ptr<LlamaSession>> create(llama_model* model,
                                                      const LlamaSessionOptions& options);
  ~LlamaSession();

  LlamaKv& kv() { return *kv_; }
  // The weights that the forward pass was seen to use when the session was made.
  const LlamaTensors& weights() const { return weights_; }

  // REQUIRES: rows.size() <= rows_max; the rows of a stream continue it.
  Status decode(std::span<const LlamaRow> rows);
  // Of a row of the last decode that wanted them; valid until the next one.
  std::span<const float> logits(std::size_t row) const;

  // Null takes the adapter off. Borrows it.
  void set_adapter(llama_adapter_lora* adapter, float scale);
  // The tensors of the adapter in force. Computes two rows; the streams stay as they are.
  Result<LlamaTensors> adapter_tensors();

 private:
  class Watch;
  LlamaSession(const LlamaSessionOptions& options, int vocab_size);
  Status probe(int tokens);
  Status find_caches(int layer_count);

  const LlamaSessionOptions options_;
  const int vocab_size_;
  std::unique_ptr<Watch> watch_;
  LlamaContextPtr context_;
  std::unique_ptr<LlamaKv> kv_;
  LlamaTensors weights_;
};

}  // namespace newmoon
