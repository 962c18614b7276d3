// Tokenizer: text to tokens and back, as the model was trained with.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hash/block_hash.h"

namespace newmoon {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// Immutable; any thread may call.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // With what the model wants in front of a text (a begin-of-sequence token, if any).
  // `parse_special`: "<|im_end|>" and its like are tokens; without, they are text, as
  // they must be in what a user wrote.
  virtual std::vector<Token> encode(std::string_view text, bool parse_special) const = 0;
  // The bytes of one token, not always whole UTF-8 characters; special tokens as text if
  // `special`, else as nothing. kBadRequest: not in the vocabulary.
  virtual Result<std::string> decode(Token token, bool special) const = 0;

  virtual int vocab_size() const = 0;
  virtual Token end_of_sequence() const = 0;
  // Whether generation ends with it: end of sequence, of turn, and their like.
  virtual bool ends_generation(Token token) const = 0;

  // The prompt for the assistant's next message by the model's own template; to be
  // encoded with parse_special. kBadRequest: no template, or one that is not known.
  virtual Result<std::string> chat_prompt(std::span<const ChatMessage> messages) const = 0;
};

}  // namespace newmoon
