#include "engine/kv_cache_manager.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace newmoon {

KvCacheManager::KvCacheManager(BlockPool& pool, int block_size, int tokens_min)
    : pool_(pool),
      block_size_(static_cast<std::uint32_t>(block_size)),
      tokens_min_(static_cast<std::uint32_t>(std::max(1, tokens_min))) {}

std::uint32_t KvCacheManager::usable_hit(const EngineRequest& request,
                                         std::uint32_t num_tokens) const {
  const std::uint32_t all = request.num_tokens();
  const std::uint32_t usable = all > tokens_min_ ? all - tokens_min_ : 0;
  return std::min(num_tokens, usable) / block_size_ * block_size_;
}

std::uint32_t KvCacheManager::take_cached_prefix(EngineRequest& request) {
  assert(!request.holds_blocks() && request.num_computed_tokens == 0);
  const std::size_t blocks_max = usable_hit(request, request.num_tokens()) / block_size_;
  for (const BlockHash& hash : request.block_hashes) {
    if (request.blocks.size() == blocks_max) break;
    const std::optional<BlockId> block = pool_.find(hash);
    if (!block) break;
    pool_.acquire(*block);
    request.blocks.push_back(*block);
  }
  request.num_published_blocks = request.blocks.size();
  request.num_computed_tokens = static_cast<std::uint32_t>(request.blocks.size()) * block_size_;
  return request.num_computed_tokens;
}

bool KvCacheManager::grow(EngineRequest& request, std::uint32_t num_tokens) {
  const std::size_t needed = (num_tokens + block_size_ - 1) / block_size_;
  if (needed <= request.blocks.size()) return true;
  const auto more = pool_.allocate(needed - request.blocks.size());
  if (!more) return false;
  request.blocks.insert(request.blocks.end(), more->begin(), more->end());
  return true;
}

void KvCacheManager::note_births(const EngineRequest& request, std::uint32_t first,
                                 std::uint32_t last, Epoch epoch) {
  assert(first < last);
  for (std::uint32_t i = first / block_size_; i <= (last - 1) / block_size_; ++i) {
    Epoch birth = epoch;
    // What the tokens before attended to is in this KV as well; a part written
    // earlier keeps its birth.
    if (i > 0) birth = std::min(birth, pool_.birth(request.blocks[i - 1]));
    if (i * block_size_ < first) birth = std::min(birth, pool_.birth(request.blocks[i]));
    pool_.set_birth(request.blocks[i], birth);
  }
}

void KvCacheManager::publish(EngineRequest& request) {
  const std::size_t full = request.num_computed_tokens / block_size_;
  const std::span<const Token> tokens(request.tokens);
  for (std::size_t& i = request.num_published_blocks; i < full; ++i) {
    BlockPool::Content content{.hash = request.block_hashes[i],
                               .parent = std::nullopt,
                               .tokens = tokens.subspan(i * block_size_, block_size_),
                               .lora_name = {}};
    if (i > 0) content.parent = request.block_hashes[i - 1];
    if (request.input.extra_keys.lora) content.lora_name = request.input.extra_keys.lora->name;
    pool_.publish(request.blocks[i], content);
  }
}

void KvCacheManager::truncate(EngineRequest& request, std::size_t keep) {
  if (request.blocks.size() > keep) {
    const auto first = request.blocks.begin() + static_cast<std::ptrdiff_t>(keep);
    const std::span<const BlockId> dropped(first, request.blocks.end());
    // First, what can run out of memory.
    if (request.load_id != 0) {
      hold(held_by_load_[request.load_id], dropped);
    } else if (request.step_id != 0) {
      hold(held_by_step_[request.step_id], dropped);
    } else {
      pool_.release(dropped);
    }
    request.blocks.erase(first, request.blocks.end());
  }
  const auto kept = static_cast<std::uint32_t>(keep) * block_size_;
  request.num_computed_tokens = std::min(request.num_computed_tokens, kept);
  request.num_published_blocks = std::min(request.num_published_blocks, keep);
}

void KvCacheManager::hold(std::vector<BlockId>& held, std::span<const BlockId> blocks) {
  held.insert(held.end(), blocks.begin(), blocks.end());
}

void KvCacheManager::release(std::map<std::uint64_t, std::vector<BlockId>>& held,
                             std::uint64_t id) {
  const auto found = held.find(id);
  if (found == held.end()) return;
  pool_.release(found->second);
  held.erase(found);
}

void KvCacheManager::step_ended(std::uint64_t step_id) { release(held_by_step_, step_id); }
void KvCacheManager::load_ended(std::uint64_t load_id) { release(held_by_load_, load_id); }

}  // namespace newmoon
