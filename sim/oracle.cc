#include "sim/oracle.h"

#include "sim/block_memory.h"

namespace newmoon::sim {

Oracle::Oracle(const BlockHasher& hasher, std::size_t ranks, int vocab_size, Verdict& verdict)
    : hasher_(hasher), ranks_(ranks), vocab_size_(vocab_size), verdict_(verdict) {}

void Oracle::learn(std::span<const Token> tokens, const ExtraKeys& extra) {
  std::vector<BlockHash> chain;
  if (!hasher_.extend(tokens, extra, chain)) return;
  const auto size = static_cast<std::size_t>(hasher_.block_size());
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto [entry, is_new] = blocks_.try_emplace(chain[i]);
    if (!is_new) continue;
    if (i > 0) entry->second.parent = chain[i - 1];
    const std::span<const Token> block = tokens.subspan(i * size, size);
    entry->second.tokens.assign(block.begin(), block.end());
  }
}

void Oracle::learn(const Scope& scope, const WeightsByRank& weights) {
  const auto [entry, is_new] = scopes_.try_emplace(scope.id(), weights);
  if (is_new || entry->second == weights) return;
  verdict_.violation("W2",
                     "scope " + scope.id().hex() + " is opened for other weights than before");
}

Token Oracle::next_token(const WeightsByRank& weights, std::span<const Token> tokens) const {
  return toy::cold_tokens(weights, tokens, 1, vocab_size_).front();
}

const Oracle::Computed& Oracle::compute(toy::Weights weights, const BlockHash& hash) {
  const auto found = computed_.find({weights, hash});
  if (found != computed_.end()) return found->second;
  const KnownBlock& block = blocks_.at(hash);
  Computed computed;
  if (block.parent) computed.after = compute(weights, *block.parent).after;
  std::vector<toy::KvEntry> entries;
  for (const Token token : block.tokens) {
    entries.push_back(toy::kv_of(weights, computed.after, token));
    computed.after = toy::attend(computed.after, entries.back());
  }
  computed.payload = SimMemory::payload(entries);
  return computed_.emplace(ComputedKey{weights, hash}, std::move(computed)).first->second;
}

void Oracle::check_store(SharedStore& store, const LayoutId& layout, bool final) {
  // A copy: the checks put nothing, but the run goes on after them.
  for (const Key& key : std::vector<Key>(store.keys)) check_value(store, key, layout, final);
}

std::optional<Bytes> Oracle::read(SharedStore& store, const Key& key,
                                  const LayoutId& layout) const {
  Bytes payload(static_cast<std::size_t>(hasher_.block_size()) * toy::kKvEntryBytes);
  const Fragment whole(payload);
  const GetItem item{.key = key, .payload = {&whole, 1}, .checksum = true};
  const Result<GetValue> value = store.truth.get({&item, 1}).front();
  if (!value) return std::nullopt;
  // What was damaged where it lies says so itself (rule SELF).
  if (!verify_header(value->header, key, layout, payload.size(), value->payload_checksum, true)) {
    return std::nullopt;
  }
  return payload;
}

bool Oracle::is_readable(SharedStore& store, const Key& key, const LayoutId& layout) const {
  return read(store, key, layout).has_value();
}

void Oracle::check_value(SharedStore& store, const Key& key, const LayoutId& layout, bool final) {
  const std::optional<Bytes> payload = read(store, key, layout);
  if (!payload) return;
  const std::string name = key.to_string();
  const auto scope = scopes_.find(key.scope);
  if (scope == scopes_.end()) {
    verdict_.violation("W2", name + " is stored under a scope that nobody opened");
    return;
  }
  if (!blocks_.contains(key.block)) {
    if (final) verdict_.violation("W2", name + " is stored, but no request had such tokens");
    return;
  }
  if (key.shard.tp >= ranks_) {
    verdict_.violation("W2", name + " is of a shard that does not exist");
    return;
  }
  if (compute(scope->second[key.shard.tp], key.block).payload == *payload) return;
  verdict_.violation("W2", name + " holds KV that the weights of its scope did not compute");
}

}  // namespace newmoon::sim
