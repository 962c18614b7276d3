// The tokenizer that a GGUF file carries. Its own copy of the vocabulary, without
// weights: it goes on while the model sleeps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/llama_library.h"
#include "model/tokenizer.h"

struct llama_vocab;

namespace newmoon {

class LlamaTokenizer final : public Tokenizer {
 public:
  // Errors as of load_llama_model().
  static Result<std::unique_ptr<LlamaTokenizer>> load(const std::string& model_path);

  std::vector<Token> encode(std::string_view text, bool parse_special) const override;
  Result<std::string> decode(Token token, bool special) const override;
  int vocab_size() const override;
  Token end_of_sequence() const override;
  bool ends_generation(Token token) const override;
  Result<std::string> chat_prompt(std::span<const ChatMessage> messages) const override;

 private:
  LlamaTokenizer(LlamaModelPtr model, std::string path);

  const LlamaModelPtr model_;  // vocabulary only
  const llama_vocab* const vocab_;
  const std::string path_;
};

}  // namespace newmoon
