// The messages whose hashes make a chain: (parent, tokens, extra keys), as CBOR or as
// a pickle. Each is written where the one before it stood; what comes before the
// tokens differs in the parent's bytes alone, so only these are written again.
// Internal to hash/. One thread.
#pragma once

#include <cstdint>
#include <span>

#include "hash/block_hash.h"
#include "hash/cbor.h"
#include "hash/message_buffer.h"
#include "hash/pickle.h"

namespace newmoon {

// One block of a request, as a part of its prompt.
struct Block {
  std::span<const Token> tokens;
  std::size_t index;

  std::int64_t begin() const { return static_cast<std::int64_t>(index * tokens.size()); }
  std::int64_t end() const { return begin() + static_cast<std::int64_t>(tokens.size()); }
};

class CborMessages {
 public:
  // `out` is empty and outlives this, as `extra` does, which must have been checked.
  CborMessages(MessageBuffer& out, const ExtraKeys& extra, std::size_t parent_bytes,
               std::size_t block_size);

  // Always true: every block has a CBOR form.
  bool write(const BlockHash& parent, const Block& block);

 private:
  MessageBuffer& out_;
  const ExtraKeys& extra_;
  CborWriter cbor_;
  std::size_t parent_at_;
  std::size_t tokens_at_;
};

// For blocks without multimodal and prompt-embeds keys.
class PickleMessages {
 public:
  // As of CborMessages.
  PickleMessages(MessageBuffer& out, const ExtraKeys& extra, std::size_t parent_bytes,
                 std::size_t block_size);

  // False if the block does not fit one pickle frame.
  bool write(const BlockHash& parent, const Block& block);

 private:
  MessageBuffer& out_;
  const ExtraKeys& extra_;
  PickleWriter pickle_;
  std::size_t parent_at_;
  std::size_t tokens_at_;
};

}  // namespace newmoon
