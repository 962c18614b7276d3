#include "engine/block_pool.h"

#include <cassert>
#include <string>
#include <utility>

#include "base/log.h"

namespace newmoon {

std::size_t BlockPool::KeyHash::operator()(const Key& key) const noexcept {
  return std::hash<BlockHash>{}(key.hash) ^ (key.epoch * 0x9e3779b97f4a7c15ULL) ^ key.group;
}

BlockPool::BlockPool(Options options, Epoch epoch)
    : options_(options), epoch_(epoch), blocks_(options.block_count) {
  assert(options.block_count >= 2);
  for (std::size_t id = 1; id < blocks_.size(); ++id) push_free(static_cast<BlockId>(id));
}

BlockPool::Block& BlockPool::at(BlockId block) {
  assert(block > kNullBlock && static_cast<std::size_t>(block) < blocks_.size());
  return blocks_[static_cast<std::size_t>(block)];
}

void BlockPool::push_free(BlockId id) {
  Block& end = blocks_[kNullBlock];
  Block& block = at(id);
  block.previous = end.previous;
  block.next = kNullBlock;
  blocks_[static_cast<std::size_t>(end.previous)].next = id;
  end.previous = id;
  ++free_count_;
}

void BlockPool::remove_free(BlockId id) {
  const Block& block = at(id);
  blocks_[static_cast<std::size_t>(block.previous)].next = block.next;
  blocks_[static_cast<std::size_t>(block.next)].previous = block.previous;
  --free_count_;
}

// The block's KV is about to be overwritten.
void BlockPool::forget(Block& block) {
  if (!block.key) return;
  if (options_.enable_kv_events && block.key->epoch == epoch_) {
    events_.emplace_back(BlockRemoved{.epoch = epoch_, .block_hash = block.key->hash});
  }
  cached_.erase(*block.key);
  block.key.reset();
}

std::optional<std::vector<BlockId>> BlockPool::allocate(std::size_t count) {
  if (count > free_count_) return std::nullopt;
  std::vector<BlockId> allocated;
  allocated.reserve(count);
  while (allocated.size() < count) {
    const BlockId id = blocks_[kNullBlock].next;
    remove_free(id);
    Block& block = at(id);
    forget(block);
    block.birth = 0;
    block.references = 1;
    allocated.push_back(id);
  }
  return allocated;
}

std::optional<BlockId> BlockPool::find(const BlockHash& hash, std::uint32_t group) const {
  const auto found = cached_.find({.epoch = epoch_, .hash = hash, .group = group});
  if (found == cached_.end()) return std::nullopt;
  assert(birth(found->second) == epoch_);
  return found->second;
}

void BlockPool::acquire(BlockId id) {
  Block& block = at(id);
  if (block.references++ == 0) remove_free(id);
}

void BlockPool::drop_reference(BlockId id) {
  Block& block = at(id);
  assert(block.references > 0);
  if (--block.references == 0) push_free(id);
}

void BlockPool::release(std::span<const BlockId> blocks) {
  for (std::size_t i = blocks.size(); i-- > 0;) drop_reference(blocks[i]);
}

void BlockPool::set_birth(BlockId id, Epoch birth) { at(id).birth = birth; }

Epoch BlockPool::birth(BlockId id) const {
  assert(id > kNullBlock && static_cast<std::size_t>(id) < blocks_.size());
  return blocks_[static_cast<std::size_t>(id)].birth;
}

void BlockPool::publish(BlockId id, const Content& content, std::uint32_t group) {
  Block& block = at(id);
  // Rule BIRTH: KV of an older epoch may be of other weights.
  if (!options_.enable_prefix_caching || block.birth != epoch_ || block.key) return;
  const Key key{.epoch = epoch_, .hash = content.hash, .group = group};
  if (!cached_.emplace(key, id).second) return;
  block.key = key;
  if (!options_.enable_kv_events) return;
  events_.emplace_back(BlockStored{.epoch = epoch_,
                                   .block_hash = content.hash,
                                   .parent_block_hash = content.parent,
                                   .token_ids = {content.tokens.begin(), content.tokens.end()},
                                   .block_size = options_.block_size,
                                   .lora_name = content.lora_name});
}

void BlockPool::reset(Epoch epoch) {
  assert(epoch > epoch_);
  epoch_ = epoch;  // first: the rest can run out of memory
  log(LogLevel::kDebug, "block_pool",
      "reset: blocks born before epoch " + std::to_string(epoch) + " are found no more");
  if (!options_.enable_kv_events) return;
  events_.clear();  // what they announced is gone before anybody heard of it
  events_.emplace_back(AllBlocksCleared{.epoch = epoch});
}

std::vector<KvEvent> BlockPool::take_events() { return std::exchange(events_, {}); }

void BlockPool::pin(BlockId id) {
  acquire(id);
  if (at(id).pins++ == 0) ++pinned_count_;
}

void BlockPool::unpin(BlockId id) {
  Block& block = at(id);
  assert(block.pins > 0);
  if (--block.pins == 0) --pinned_count_;
  drop_reference(id);
}

}  // namespace newmoon
