// The name of one rank's bytes of one block in a store.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hash/block_hash.h"
#include "hash/scope.h"

namespace newmoon {

// What distinguishes a rank's bytes. Ranks with identical bytes share a shard.
struct Shard {
  std::uint16_t tp = 0;
  std::uint16_t pp = 0;
  std::uint16_t dcp = 0;
  std::uint16_t group = 0;  // KV cache group

  std::uint64_t packed() const {
    return std::uint64_t{tp} << 48 | std::uint64_t{pp} << 32 | std::uint64_t{dcp} << 16 | group;
  }
  // "t0p0d0g0", decimal without padding.
  std::string to_string() const;
  friend auto operator<=>(const Shard&, const Shard&) = default;
};

struct Key {
  ScopeId scope;
  Shard shard;
  BlockHash block;

  // "nm1:<scope id, 32 hex>:<shard>:<block hash, hex>"
  std::string to_string() const;
  friend bool operator==(const Key&, const Key&) = default;
};

// kBadRequest: not of the form that to_string() makes.
Result<Key> parse_key(std::string_view text);
// What every key of a scope starts with: "nm1:<scope id, 32 hex>:".
std::string key_prefix(const ScopeId& scope);

}  // namespace newmoon
