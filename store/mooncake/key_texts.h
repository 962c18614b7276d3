// Keys as Mooncake has them, as text, for a batch of calls. The text is that of hash/key.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hash/key.h"

namespace newmoon {

// One thread at a time. Cheap for a lookup of thousands: one buffer, no string a key, and
// what keys have in common is spelled once.
class KeyTexts {
 public:
  // Room for so many, once; more must not be added.
  explicit KeyTexts(std::size_t count);

  void add(const ScopeId& scope, const Shard& shard, const BlockHash& block);
  void add(const Key& key) { add(key.scope, key.shard, key.block); }
  // Valid as long as this.
  std::span<const std::string_view> views() const { return views_; }

 private:
  // "nm1:" + 32 hex + ":" + "t65535p65535d65535g65535" + ":" + 64 hex
  static constexpr std::size_t kKeyBytesMax = 4 + 32 + 1 + 24 + 1 + 2 * BlockHash::kMaxSize;

  std::unique_ptr<char[]> text_;
  std::size_t used_ = 0;
  std::vector<std::string_view> views_;
  ScopeId scope_;
  Shard shard_;
  std::string prefix_;  // of a key of scope_ and shard_; empty: none yet
};

}  // namespace newmoon
