#include "hash/block_hash.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "hash/block_message.h"
#include "hash/sha256.h"
#include "hash/xxh3.h"

namespace newmoon {
namespace {

constexpr std::string_view kFixedSeed = "vllm-none-hash";

std::unexpected<Error> bad_request(std::string message) {
  return fail(Code::kBadRequest, std::move(message));
}

std::unexpected<Error> too_long(std::size_t block_index) {
  return bad_request("block " + std::to_string(block_index) +
                     " is too long for one pickle frame: shorten its lora or cache_salt, or "
                     "hash with sha256_cbor");
}

void write_seed(HashAlgo algo, MessageBuffer& out, std::string_view seed) {
  if (algo != HashAlgo::kSha256) return CborWriter(out).text(seed);
  PickleWriter pickle(out);
  pickle.text(seed);
  pickle.finish();
}

// --- What may be hashed ---

Status check_multimodal(const ExtraKeys::Multimodal& item) {
  const bool in_range = item.offset >= 0 && item.length >= 0 &&
                        item.offset <= std::numeric_limits<std::int64_t>::max() - item.length;
  if (in_range) return {};
  return bad_request("multimodal item at offset " + std::to_string(item.offset) + " of length " +
                     std::to_string(item.length) + ": neither may be negative or overflow");
}

Status check_extra(HashAlgo algo, const ExtraKeys& extra, std::size_t block_count) {
  if (algo == HashAlgo::kSha256 &&
      !(extra.multimodal.empty() && extra.prompt_embeds_digests.empty())) {
    return bad_request(
        "sha256 cannot hash multimodal or prompt-embeds keys the same in every process; "
        "use sha256_cbor");
  }
  for (const ExtraKeys::Multimodal& item : extra.multimodal) {
    if (Status status = check_multimodal(item); !status) return status;
  }
  const std::vector<Bytes>& digests = extra.prompt_embeds_digests;
  if (!digests.empty() && digests.size() < block_count) {
    return bad_request("prompt_embeds_digests has " + std::to_string(digests.size()) +
                       " entries for " + std::to_string(block_count) + " blocks");
  }
  for (const Bytes& digest : digests) {
    if (digest.size() == sizeof(Sha256Digest)) continue;
    return bad_request("prompt_embeds digest has " + std::to_string(digest.size()) +
                       " bytes, a SHA-256 has 32");
  }
  return {};
}

// Makes room at once, yet never so tightly that a chain growing block by block
// would be copied for every block.
void reserve(std::vector<BlockHash>& chain, std::size_t count) {
  if (count > chain.capacity()) chain.reserve(std::max(count, 2 * chain.capacity()));
}

BlockHash hash_seed(HashAlgo algo, std::string_view seed) {
  MessageBuffer message;
  write_seed(algo, message, seed);
  return algo == HashAlgo::kXxhashCbor ? BlockHash(xxh3_128(message.view()))
                                       : BlockHash(sha256(message.view()));
}

struct Sha256Digester {
  Sha256Digest operator()(ByteView message) {
    sha256.update(message);
    return sha256.finish();
  }
  Sha256 sha256;
};

struct Xxh3Digester {
  auto operator()(ByteView message) { return xxh3_128(message); }
};

// Grows `chain` to all full blocks of `tokens`; on failure it is as it was.
template <class Messages, class Digester>
Status grow(std::vector<BlockHash>& chain, const BlockHasher& hasher, std::span<const Token> tokens,
            const ExtraKeys& extra) {
  const auto block_size = static_cast<std::size_t>(hasher.block_size());
  const std::size_t known = chain.size();
  MessageBuffer buffer;
  Messages messages(buffer, extra, hasher.none_hash().bytes().size(), block_size);
  Digester digest;
  BlockHash parent = known == 0 ? hasher.none_hash() : chain.back();
  reserve(chain, tokens.size() / block_size);
  chain.resize(tokens.size() / block_size);
  for (std::size_t i = known; i < chain.size(); ++i) {
    if (!messages.write(parent, Block{tokens.subspan(i * block_size, block_size), i})) {
      chain.resize(known);
      return too_long(i);
    }
    parent = BlockHash(digest(buffer.view()));
    chain[i] = parent;
  }
  return {};
}

}  // namespace

std::uint64_t BlockHash::event_int() const {
  return size_ < 8 ? 0 : load_be<std::uint64_t>(bytes_.data() + size_ - 8);
}

Result<HashAlgo> parse_hash_algo(std::string_view name) {
  for (const HashAlgo algo : {HashAlgo::kSha256, HashAlgo::kSha256Cbor, HashAlgo::kXxhashCbor}) {
    if (to_string(algo) == name) return algo;
  }
  return bad_request("hash algorithm \"" + std::string(name) +
                     "\" is not one of sha256, sha256_cbor, xxhash_cbor");
}

std::string_view to_string(HashAlgo algo) {
  switch (algo) {
    case HashAlgo::kSha256:
      return "sha256";
    case HashAlgo::kSha256Cbor:
      return "sha256_cbor";
    case HashAlgo::kXxhashCbor:
      return "xxhash_cbor";
  }
  std::abort();
}

BlockHasher::BlockHasher(HashAlgo algo, int block_size, std::optional<std::string> seed)
    : algo_(algo),
      block_size_(block_size),
      none_hash_(hash_seed(algo, seed ? std::string_view(*seed) : kFixedSeed)) {
  if (block_size <= 0) std::abort();
}

Status BlockHasher::extend(std::span<const Token> tokens, const ExtraKeys& extra,
                           std::vector<BlockHash>& chain) const {
  const std::size_t block_count = tokens.size() / static_cast<std::size_t>(block_size_);
  if (block_count <= chain.size()) return {};
  if (Status status = check_extra(algo_, extra, block_count); !status) return status;
  switch (algo_) {
    case HashAlgo::kSha256:
      return grow<PickleMessages, Sha256Digester>(chain, *this, tokens, extra);
    case HashAlgo::kSha256Cbor:
      return grow<CborMessages, Sha256Digester>(chain, *this, tokens, extra);
    case HashAlgo::kXxhashCbor:
      return grow<CborMessages, Xxh3Digester>(chain, *this, tokens, extra);
  }
  std::abort();
}

Result<Bytes> BlockHasher::block_input(const BlockHash& parent, std::span<const Token> block,
                                       std::size_t block_index, const ExtraKeys& extra) const {
  if (Status status = check_extra(algo_, extra, block_index + 1); !status) {
    return std::unexpected(status.error());
  }
  MessageBuffer buffer;
  const auto write_with = [&](auto messages) {
    return messages.write(parent, {block, block_index});
  };
  const std::size_t parent_bytes = parent.bytes().size();
  const bool written = algo_ == HashAlgo::kSha256
                           ? write_with(PickleMessages(buffer, extra, parent_bytes, block.size()))
                           : write_with(CborMessages(buffer, extra, parent_bytes, block.size()));
  if (!written) return too_long(block_index);
  return Bytes(buffer.view().begin(), buffer.view().end());
}

}  // namespace newmoon
