// The oracle: what a cold engine would say and store. Knows every token sequence that
// was ever seen in a world and the weights behind every scope, and judges tokens
// (contract W1) and stored values (W2) by computing them anew.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hash/block_hash.h"
#include "hash/scope.h"
#include "model/toy_model.h"
#include "sim/shared_store.h"
#include "sim/verdict.h"

namespace newmoon::sim {

using WeightsByRank = std::vector<toy::Weights>;

class Oracle {
 public:
  Oracle(const BlockHasher& hasher, std::size_t ranks, int vocab_size, Verdict& verdict);

  // Every full block of `tokens` may be stored from now on.
  void learn(std::span<const Token> tokens, const ExtraKeys& extra);
  // These weights are what `scope` stands for.
  void learn(const Scope& scope, const WeightsByRank& weights);

  // The token that ranks with these weights say after `tokens`.
  Token next_token(const WeightsByRank& weights, std::span<const Token> tokens) const;

  // Checks every value that is in the store. `final`: nothing may be unknown any more.
  void check_store(SharedStore& store, const LayoutId& layout, bool final);
  // Whether a value is there, undamaged.
  bool is_readable(SharedStore& store, const Key& key, const LayoutId& layout) const;
  void check_value(SharedStore& store, const Key& key, const LayoutId& layout, bool final);

 private:
  struct KnownBlock {
    std::optional<BlockHash> parent;
    std::vector<Token> tokens;
  };
  struct Computed {
    toy::History after = toy::kEmptyHistory;
    Bytes payload;
  };
  struct ComputedKey {
    toy::Weights weights;
    BlockHash hash;
    friend bool operator==(const ComputedKey&, const ComputedKey&) = default;
  };
  struct ComputedKeyHash {
    std::size_t operator()(const ComputedKey& key) const noexcept {
      return std::hash<BlockHash>{}(key.hash) ^ key.weights;
    }
  };

  // The payload of an undamaged value; nullopt: it is not there.
  std::optional<Bytes> read(SharedStore& store, const Key& key, const LayoutId& layout) const;
  const Computed& compute(toy::Weights weights, const BlockHash& hash);

  const BlockHasher& hasher_;
  const std::size_t ranks_;
  const int vocab_size_;
  Verdict& verdict_;
  std::unordered_map<BlockHash, KnownBlock> blocks_;
  std::map<ScopeId, WeightsByRank> scopes_;
  std::unordered_map<ComputedKey, Computed, ComputedKeyHash> computed_;
};

}  // namespace newmoon::sim
