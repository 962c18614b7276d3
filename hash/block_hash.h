// vLLM's chained block hash, bit-exact (vLLM 0.32, v1/core/kv_cache_utils.py and
// utils/hashing.py):  h_i = H((parent, (t_0..t_{n-1}), extra)),  parent = h_{i-1},
// for i = 0 NONE_HASH = H(seed). The weights are not part of it: they are part of
// the scope (hash/scope.h). Immutable after construction; any thread may call.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace newmoon {

using Token = std::int32_t;

// 32 bytes for sha256*, 16 for xxhash*. A value type.
class BlockHash {
 public:
  static constexpr std::size_t kMaxSize = 32;

  BlockHash() = default;
  // REQUIRES: bytes.size() <= kMaxSize (else aborts).
  explicit BlockHash(ByteView bytes) : size_(static_cast<std::uint8_t>(bytes.size())) {
    if (bytes.size() > kMaxSize) std::abort();
    if (!bytes.empty()) std::memcpy(bytes_.data(), bytes.data(), bytes.size());
  }

  ByteView bytes() const { return {bytes_.data(), size_}; }
  std::string hex() const { return to_hex(bytes()); }
  // What a KV event carries: the last 8 bytes as u64, big-endian.
  std::uint64_t event_int() const;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;

 private:
  std::array<std::uint8_t, kMaxSize> bytes_{};  // zero behind size_
  std::uint8_t size_ = 0;
};

enum class HashAlgo : std::uint8_t { kSha256, kSha256Cbor, kXxhashCbor };

// "sha256", "sha256_cbor", "xxhash_cbor".
Result<HashAlgo> parse_hash_algo(std::string_view name);
std::string_view to_string(HashAlgo algo);

// What a request adds to the hash of its blocks, in vLLM's order.
struct ExtraKeys {
  struct Lora {
    std::string name;
    std::string path;
  };
  struct Multimodal {
    std::string identifier;
    std::int64_t offset = 0;  // in the prompt, tokens
    std::int64_t length = 0;  // tokens
  };

  std::optional<Lora> lora;                  // in every block
  std::vector<Multimodal> multimodal;        // in the blocks they overlap
  std::string cache_salt;                    // in the first block; "" = none
  std::vector<Bytes> prompt_embeds_digests;  // one SHA-256 a block; empty = none
};

class BlockHasher {
 public:
  // `seed`: PYTHONHASHSEED verbatim; nullopt = vLLM's fixed seed "vllm-none-hash"
  // (for xxhash_cbor vLLM draws a random one; we use the same fixed one).
  // REQUIRES: block_size > 0 (tokens a block).
  BlockHasher(HashAlgo algo, int block_size, std::optional<std::string> seed);

  HashAlgo algo() const { return algo_; }
  int block_size() const { return block_size_; }
  const BlockHash& none_hash() const { return none_hash_; }

  // Appends to `chain` the hashes of the full blocks of `tokens` that it lacks
  // (chain[i] is the hash of tokens [i * block_size, (i+1) * block_size)).
  // `tokens` may have grown since the last call; what was hashed must not change.
  // kBadRequest, and `chain` as it was: sha256 (pickle form) with multimodal or
  // prompt-embeds keys, whose pickle depends on Python object identity, or with keys
  // too long for one pickle frame (use sha256_cbor); a multimodal offset or length
  // that is negative or overflows; fewer prompt-embeds digests than blocks, or one
  // that is no SHA-256.
  Status extend(std::span<const Token> tokens, const ExtraKeys& extra,
                std::vector<BlockHash>& chain) const;

  // The bytes that are hashed for one block, for tests against upstream's vectors.
  // kBadRequest as of extend().
  Result<Bytes> block_input(const BlockHash& parent, std::span<const Token> block,
                            std::size_t block_index, const ExtraKeys& extra) const;

 private:
  HashAlgo algo_;
  int block_size_;
  BlockHash none_hash_;
};

}  // namespace newmoon

template <>
struct std::hash<newmoon::BlockHash> {
  // The bytes are a digest already; any eight of them are a good hash.
  std::size_t operator()(const newmoon::BlockHash& hash) const noexcept {
    std::size_t value = 0;
    const newmoon::ByteView bytes = hash.bytes();
    for (std::size_t i = 0; i < bytes.size() && i < sizeof value; ++i) {
      value = value << 8 | bytes[i];
    }
    return value;
  }
};
