// KvCacheManager: the block tables of requests. Finds what is cached, allocates,
// keeps births, publishes, and lets blocks go, no sooner than the steps and loads
// that may still touch them have ended (rule STEP).
//
// One thread (the engine's loop).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/block_pool.h"
#include "engine/request.h"

namespace newmoon {

class KvCacheManager {
 public:
  // `tokens_min`: ModelInfo::prefill_tokens_min; a hit leaves at least so many to compute.
  KvCacheManager(BlockPool& pool, int block_size, int tokens_min);

  // Takes the longest cached prefix of the current epoch into the empty table, and
  // counts it as computed. Returns its length in tokens.
  // REQUIRES: !request.holds_blocks().
  std::uint32_t take_cached_prefix(EngineRequest& request);
  // How many of `num_tokens` a hit may cover: whole blocks, tokens_min left over.
  std::uint32_t usable_hit(const EngineRequest& request, std::uint32_t num_tokens) const;

  // Makes the table long enough for num_tokens. False: not enough free blocks;
  // nothing changed.
  bool grow(EngineRequest& request, std::uint32_t num_tokens);

  // Rule BIRTH: tokens [first, last) will be computed, or were loaded, in `epoch`.
  void note_births(const EngineRequest& request, std::uint32_t first, std::uint32_t last,
                   Epoch epoch);
  // Puts its full computed blocks that are of the current epoch into the local cache.
  void publish(EngineRequest& request);

  // Shortens the table to its first `keep` blocks and num_computed_tokens with it.
  // What a step or load still uses stays taken until that has ended.
  void truncate(EngineRequest& request, std::size_t keep);
  void step_ended(std::uint64_t step_id);
  void load_ended(std::uint64_t load_id);

 private:
  static void hold(std::vector<BlockId>& held, std::span<const BlockId> blocks);
  void release(std::map<std::uint64_t, std::vector<BlockId>>& held, std::uint64_t id);

  BlockPool& pool_;
  const std::uint32_t block_size_;
  const std::uint32_t tokens_min_;
  // Blocks whose request let go of them, by what still uses them.
  std::map<std::uint64_t, std::vector<BlockId>> held_by_step_;
  std::map<std::uint64_t, std::vector<BlockId>> held_by_load_;
};

}  // namespace newmoon
