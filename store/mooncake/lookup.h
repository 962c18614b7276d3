// Which blocks of a stretch are there, in one call of batch_is_exist or in two at once.
//
// Long lookups are asked in an order that is cheap for the master, whose work they are: 1 us a
// key that is there, most of it waiting for memory. It keeps the keys of the tenant "default" in
// 1,024 maps, by libstdc++'s std::hash of their text (MasterService::getShardIndex of Mooncake
// 0.3.13), and finds what it needs of a map in its caches if the keys of one map come one after
// the other, and from one call. Measured: 15 to 27% less of the master's time. Only speed rests
// on it; with another tenant the order is of no use, and does no harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/mooncake/client.h"
#include "store/mooncake/key_texts.h"

namespace newmoon {

class Lookup {
 public:
  // Of a lookup so small that two calls cost more.
  static constexpr std::size_t kOneCallKeysMax = 1024;

  // At least one block and one shard. Copies what it needs of them.
  Lookup(const ScopeId& scope, std::span<const Shard> shards, std::span<const BlockHash> blocks);

  std::size_t blocks() const { return blocks_; }  // how many
  std::size_t calls() const { return calls_.size(); }
  // One of the calls, each to be made once. Blocks, on any thread, with others at a time. Whoever
  // makes it keeps this alive until it ends, also if nobody waits for it any more.
  void ask(MooncakeClient& client, std::size_t call);
  // Once all calls have ended: how many of the leading blocks are there for every shard. An error
  // if a call failed, or a key's code says one before the first that is not there.
  Result<std::size_t> hits() const;

 private:
  struct Call {
    std::size_t begin;
    std::size_t end;  // of texts_
    Status status;
  };

  void sort();

  const std::size_t blocks_;
  const std::size_t shards_;
  KeyTexts keys_;
  std::vector<std::uint32_t> order_;     // by place in texts_: which of keys_
  std::vector<std::string_view> texts_;  // as they are asked
  std::vector<std::int64_t> codes_;
  std::vector<Call> calls_;
};

}  // namespace newmoon
