// The arithmetic of a toy model: KV and tokens are pure functions of the weights and
// of the bytes actually in its KV, so a single stale, misplaced or mixed block, on a
// single rank, changes what it says. Tests and the simulator run engines on it and
// compare with cold_tokens().
//
// A rank keeps one entry of kKvEntryBytes per token. All functions are pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "hash/block_hash.h"

namespace newmoon::toy {

using Weights = std::uint64_t;  // of one rank
using KvEntry = std::uint64_t;  // what one rank keeps of one token
inline constexpr std::size_t kKvEntryBytes = sizeof(KvEntry);

// What attention sees of the entries of a sequence so far, folded in order.
using History = std::uint64_t;
inline constexpr History kEmptyHistory = 0x6e65776d6f6f6e31;

// splitmix64's finaliser: every input bit reaches every output bit.
constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}
constexpr History attend(History history, KvEntry entry) {
  return mix(std::rotl(history, 23) ^ entry) + 0x9e3779b97f4a7c15ULL;
}
// The entry of `token` behind `history`.
constexpr KvEntry kv_of(Weights weights, History history, Token token) {
  return mix(mix(weights + static_cast<std::uint32_t>(token)) ^ history);
}
// One rank's part of the logits; the token wanted next follows from the parts of all
// ranks. `history` includes the entry of the last token.
constexpr std::uint64_t logits_of(Weights weights, History history) {
  return mix(history ^ mix(~weights));
}
// The token that the ranks' parts, in rank order, agree on; `vocab_size` > 0.
constexpr Token token_of(std::span<const std::uint64_t> logits, int vocab_size) {
  std::uint64_t all = 0;
  for (const std::uint64_t part : logits) all = mix(std::rotl(all, 11) ^ part);
  return static_cast<Token>(all % static_cast<std::uint64_t>(vocab_size));
}

inline KvEntry load_entry(const std::uint8_t* at) { return load_le<KvEntry>(at); }
inline void store_entry(std::uint8_t* at, KvEntry entry) { store_le<KvEntry>(at, entry); }

// The oracle: the entries of one rank that has only ever held `weights`.
inline std::vector<KvEntry> cold_entries(Weights weights, std::span<const Token> tokens) {
  std::vector<KvEntry> entries;
  entries.reserve(tokens.size());
  History history = kEmptyHistory;
  for (const Token token : tokens) {
    entries.push_back(kv_of(weights, history, token));
    history = attend(history, entries.back());
  }
  return entries;
}

// The oracle: the `count` tokens that ranks with `weights` (by rank) say after
// `prompt` (not empty) when nothing but those weights ever ran.
inline std::vector<Token> cold_tokens(std::span<const Weights> weights,
                                      std::span<const Token> prompt, std::size_t count,
                                      int vocab_size) {
  std::vector<History> histories(weights.size(), kEmptyHistory);
  std::vector<std::uint64_t> logits(weights.size());
  const auto feed = [&](Token token) {
    for (std::size_t rank = 0; rank < weights.size(); ++rank) {
      histories[rank] = attend(histories[rank], kv_of(weights[rank], histories[rank], token));
      logits[rank] = logits_of(weights[rank], histories[rank]);
    }
  };
  for (const Token token : prompt) feed(token);
  std::vector<Token> said;
  while (said.size() < count) {
    said.push_back(token_of(logits, vocab_size));
    feed(said.back());
  }
  return said;
}

}  // namespace newmoon::toy
