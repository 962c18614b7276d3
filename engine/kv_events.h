// KV events: what a router needs to know of this engine's caches, as vLLM's
// BlockStored, BlockRemoved and AllBlocksCleared (vllm/distributed/kv_events.py).
// Plain values; the publisher encodes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hash/block_hash.h"
#include "hash/scope.h"

namespace newmoon {

// vLLM's names of the tiers, which routers know: the engine's own cache and the
// external one.
inline constexpr std::string_view kLocalMedium = "GPU";
inline constexpr std::string_view kExternalMedium = "cpu";

struct BlockStored {
  Epoch epoch = 0;
  BlockHash block_hash;
  std::optional<BlockHash> parent_block_hash;
  std::vector<Token> token_ids;  // empty for the external tier
  int block_size = 0;
  std::string lora_name;  // "" = none
  std::string_view medium = kLocalMedium;
};
struct BlockRemoved {
  Epoch epoch = 0;
  BlockHash block_hash;
  std::string_view medium = kLocalMedium;
};
// Everything this engine ever announced is gone.
struct AllBlocksCleared {
  Epoch epoch = 0;  // the one that begins
};
using KvEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

}  // namespace newmoon
