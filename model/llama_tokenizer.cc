#include "model/llama_tokenizer.h"

#include <llama.h>

#include <utility>

namespace newmoon {

Result<std::unique_ptr<LlamaTokenizer>> LlamaTokenizer::load(const std::string& model_path) {
  Result<LlamaModelPtr> model = load_llama_model(model_path, true);
  if (!model) return std::unexpected(model.error());
  return std::unique_ptr<LlamaTokenizer>(new LlamaTokenizer(std::move(*model), model_path));
}

LlamaTokenizer::LlamaTokenizer(LlamaModelPtr model, std::string path)
    : model_(std::move(model)),
      vocab_(llama_model_get_vocab(model_.get())),
      path_(std::move(path)) {}

std::vector<Token> LlamaTokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<Token> tokens(text.size() + 2);  // no token without a byte, but for the ends
  const int count =
      llama_tokenize(vocab_, text.data(), static_cast<int>(text.size()), tokens.data(),
                     static_cast<int>(tokens.size()), true, parse_special);
  tokens.resize(static_cast<std::size_t>(std::max(count, 0)));
  return tokens;
}

Result<std::string> LlamaTokenizer::decode(Token token, bool special) const {
  if (token < 0 || token >= vocab_size()) {
    return fail(Code::kBadRequest, "token " + std::to_string(token) +
                                       " is not in the vocabulary of " +
                                       std::to_string(vocab_size()));
  }
  std::string text(64, '\0');
  int size =
      llama_token_to_piece(vocab_, token, text.data(), static_cast<int>(text.size()), 0, special);
  if (size < 0) {  // the size it needs
    text.resize(static_cast<std::size_t>(-size));
    size = llama_token_to_piece(vocab_, token, text.data(), -size, 0, special);
  }
  text.resize(static_cast<std::size_t>(size));
  return text;
}

int LlamaTokenizer::vocab_size() const { return llama_vocab_n_tokens(vocab_); }
Token LlamaTokenizer::end_of_sequence() const { return llama_vocab_eos(vocab_); }
bool LlamaTokenizer::ends_generation(Token token) const {
  return llama_vocab_is_eog(vocab_, token);
}

Result<std::string> LlamaTokenizer::chat_prompt(std::span<const ChatMessage> messages) const {
  const char* const chat_template = llama_model_chat_template(model_.get(), nullptr);
  if (chat_template == nullptr) {
    return fail(Code::kBadRequest, "model " + path_ + " has no chat template; send a prompt");
  }
  std::vector<llama_chat_message> parts;
  std::size_t size = 1024;
  for (const ChatMessage& message : messages) {
    parts.push_back({.role = message.role.c_str(), .content = message.content.c_str()});
    size += 2 * (message.role.size() + message.content.size());
  }
  std::string prompt(size, '\0');
  const auto write = [&] {
    return llama_chat_apply_template(chat_template, parts.data(), parts.size(), true, prompt.data(),
                                     static_cast<int>(prompt.size()));
  };
  int length = write();
  if (length > static_cast<int>(prompt.size())) {
    prompt.resize(static_cast<std::size_t>(length));
    length = write();
  }
  if (length < 0) {
    return fail(Code::kBadRequest,
                "model " + path_ + ": its chat template is none that is known; send a prompt");
  }
  prompt.resize(static_cast<std::size_t>(length));
  return prompt;
}

}  // namespace newmoon
