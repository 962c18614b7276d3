#include "cli/bench_hash.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/random.h"
#include "cli/statistics.h"
#include "hash/block_hash.h"
#include "hash/sha256.h"
#include "hash/xxh3.h"

namespace newmoon {
namespace {

constexpr int kTokens = 32'768;
constexpr int kBlockSize = 16;
constexpr int kVocabulary = 151'936;  // ids of all encoded lengths, most of them long
constexpr int kRuns = 5;

std::vector<Token> prompt() {
  SeededRandom random(1);
  std::vector<Token> tokens(kTokens);
  for (Token& token : tokens) token = static_cast<Token>(random.below(kVocabulary));
  return tokens;
}

// The messages that extend() hashes, encoded beforehand.
std::vector<Bytes> messages_of(const BlockHasher& hasher, std::span<const Token> tokens) {
  std::vector<BlockHash> chain;
  std::vector<Bytes> messages;
  if (!hasher.extend(tokens, {}, chain)) return messages;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const BlockHash& parent = i == 0 ? hasher.none_hash() : chain[i - 1];
    messages.push_back(
        *hasher.block_input(parent, tokens.subspan(i * kBlockSize, kBlockSize), i, {}));
  }
  return messages;
}

template <class Work>
double run_ms(const Work& work) {
  const SystemClock clock;
  const Time start = clock.now();
  work();
  return to_ms(clock.now() - start);
}

double chain_ms(const BlockHasher& hasher, std::span<const Token> tokens) {
  std::vector<BlockHash> chain;
  return run_ms([&] { (void)hasher.extend(tokens, {}, chain); });
}

// Each message holds its parent's digest, so that no two can be hashed side by
// side. What SHA-256 does one after the other anyway must be forced upon XXH3, which
// else overlaps the messages that a chain never has at the same time.
void chain_xxh3(std::span<Bytes> messages) {
  constexpr std::size_t kParentOffset = 2;  // behind the heads of array and bytes
  const Bytes* parent = nullptr;
  std::array<std::uint8_t, 16> digest;
  for (Bytes& message : messages) {
    if (parent != nullptr) std::ranges::copy(digest, message.begin() + kParentOffset);
    digest = xxh3_128(message);
    parent = &message;
  }
}

void each_sha256(std::span<const Bytes> messages) {
  Sha256 sha256;
  for (const Bytes& message : messages) {
    sha256.update(message);
    (void)sha256.finish();
  }
}

double bare_ms(HashAlgo algo, std::span<Bytes> messages) {
  return run_ms([&] {
    if (algo == HashAlgo::kXxhashCbor) {
      chain_xxh3(messages);
    } else {
      each_sha256(messages);
    }
  });
}

HashBenchRow bench(HashAlgo algo, std::span<const Token> tokens) {
  const BlockHasher hasher(algo, kBlockSize, "0");
  std::vector<Bytes> messages = messages_of(hasher, tokens);
  std::array<double, kRuns> chain, bare;
  for (int run = 0; run < kRuns; ++run) {
    chain[run] = chain_ms(hasher, tokens);
    bare[run] = bare_ms(algo, messages);
  }
  HashBenchRow row{.algo = std::string(to_string(algo)), .tokens = kTokens};
  row.ms = median(chain);
  row.limit_ms = median(bare);
  row.ratio = row.ms / row.limit_ms;
  return row;
}

}  // namespace

std::vector<HashBenchRow> bench_hash() {
  const std::vector<Token> tokens = prompt();
  std::vector<HashBenchRow> rows;
  for (const HashAlgo algo : {HashAlgo::kSha256Cbor, HashAlgo::kSha256, HashAlgo::kXxhashCbor}) {
    rows.push_back(bench(algo, tokens));
  }
  return rows;
}

}  // namespace newmoon
