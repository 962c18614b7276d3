// llama.cpp's own generation loop, as its example programs write it: the yardstick of
// the benches. Nothing of LlamaRunner is in it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/llama_library.h"
#include "model/llama_session.h"

struct llama_batch;
struct llama_sampler;

namespace newmoon {

// One thread at a time.
class LlamaPlainLoop {
 public:
  // With a model of its own. The options mean what they mean for a LlamaSession.
  static Result<std::unique_ptr<LlamaPlainLoop>> create(const std::string& model_path,
                                                        const LlamaSessionOptions& options);
  ~LlamaPlainLoop();

  // Empties all streams and computes the same prompt in each.
  Status prefill(std::span<const Token> prompt);
  // Greedy, one token more of each stream, all in one llama_decode.
  Status generate();

 private:
  LlamaPlainLoop(const LlamaSessionOptions& options, LlamaModelPtr model, LlamaContextPtr context);
  struct SamplerDeleter {
    void operator()(llama_sampler* sampler) const;
  };

  const LlamaSessionOptions options_;
  const LlamaModelPtr model_;
  const LlamaContextPtr context_;
  const std::unique_ptr<llama_sampler, SamplerDeleter> sampler_;
  struct BatchDeleter {
    void operator()(llama_batch* batch) const;
  };
  const std::unique_ptr<llama_batch, BatchDeleter> batch_;  // room for rows_max
  std::vector<Token> next_;                                 // by stream: sampled, not computed
  int length_ = 0;                                          // of every stream, tokens
};

}  // namespace newmoon
