// BlockPool: the engine's KV blocks by id: who holds them, what KV they hold, and
// which of it may be found again.
//
// A block is free when nothing references it: no request, no step in flight, no
// load, no save (rules STEP and PIN: each of them holds references). Free blocks
// keep their KV, and can be found by it, until they are allocated again, least
// recently freed first.
//
// The local cache is a map from (epoch, block hash, group) to block (rule ROOT). A
// fence moves the epoch, and with that every older entry is out of reach at once,
// whatever their number; an entry goes when its block is allocated anew, so there
// are never more entries than blocks.
//
// One thread (the engine's loop).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "connector/store_scheduler.h"
#include "engine/kv_events.h"
#include "hash/block.h"

namespace newmoon {

class BlockPool final : public BlockPins {
 public:
  struct Options {
    std::size_t block_count = 0;  // with the null block; at least 2
    int block_size = 16;          // tokens, for events
    bool enable_prefix_caching = true;
    bool enable_kv_events = false;  // somebody calls take_events()
  };
  // `epoch`: the fence's when the engine starts.
  BlockPool(Options options, Epoch epoch);

  std::size_t usable_count() const { return blocks_.size() - 1; }
  std::size_t free_count() const { return free_count_; }
  std::size_t used_count() const { return usable_count() - free_count_; }
  std::size_t pinned_count() const { return pinned_count_; }
  std::size_t cached_count() const { return cached_.size(); }  // old epochs' included

  // All or nothing; one reference each. They hold no KV that could be found.
  std::optional<std::vector<BlockId>> allocate(std::size_t count);
  // A cached block of the current epoch.
  std::optional<BlockId> find(const BlockHash& hash, std::uint32_t group = 0) const;
  void acquire(BlockId block);
  // Drops one reference of each. The last ones become free first, so that the front
  // of a prompt stays findable longest.
  void release(std::span<const BlockId> blocks);

  // Rule BIRTH: KV was, or is about to be, written to a block.
  void set_birth(BlockId block, Epoch birth);

  // What a BlockStored says besides the block's own hash.
  struct Content {
    BlockHash hash;
    std::optional<BlockHash> parent;
    std::span<const Token> tokens;
    std::string lora_name;
  };
  // Makes a full block findable, if its birth is the current epoch and no other
  // block holds the same KV.
  void publish(BlockId block, const Content& content, std::uint32_t group = 0);

  // The fence has moved: nothing cached before can be found. O(1), and announced at
  // once.
  void reset(Epoch epoch);
  Epoch epoch() const { return epoch_; }

  // In order; none of an epoch before the last AllBlocksCleared.
  std::vector<KvEvent> take_events();

  // --- BlockPins ---
  void pin(BlockId block) override;
  void unpin(BlockId block) override;
  Epoch birth(BlockId block) const override;

 private:
  struct Key {
    Epoch epoch = 0;
    BlockHash hash;
    std::uint32_t group = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Block {
    std::uint32_t references = 0;  // pins included
    std::uint32_t pins = 0;
    Epoch birth = 0;
    std::optional<Key> key;         // under which it is in cached_
    BlockId previous = kNullBlock;  // in the free list, whose ends meet in the null block
    BlockId next = kNullBlock;
  };

  Block& at(BlockId block);
  void drop_reference(BlockId block);
  void push_free(BlockId block);
  void remove_free(BlockId block);
  void forget(Block& block);

  const Options options_;
  Epoch epoch_;
  std::vector<Block> blocks_;
  std::size_t free_count_ = 0;
  std::size_t pinned_count_ = 0;
  std::unordered_map<Key, BlockId, KeyHash> cached_;
  std::vector<KvEvent> events_;
};

}  // namespace newmoon
