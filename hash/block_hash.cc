#include "hash/block_hash.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <variant>

#include "hash/cbor.h"
#include "hash/pickle.h"
#include "hash/sha256.h"
#include "hash/xxh3.h"

namespace newmoon {
namespace {

constexpr std::string_view kFixedSeed = "vllm-none-hash";

// One block of a request, as a part of its prompt.
struct Block {
  std::span<const Token> tokens;
  std::size_t index;

  std::int64_t begin() const { return static_cast<std::int64_t>(index * tokens.size()); }
  std::int64_t end() const { return begin() + static_cast<std::int64_t>(tokens.size()); }
};

std::unexpected<Error> bad_request(std::string message) {
  return fail(Code::kBadRequest, std::move(message));
}

// --- What is hashed, as CBOR ---

bool overlaps(const ExtraKeys::Multimodal& item, const Block& block) {
  return item.offset < block.end() && block.begin() < item.offset + item.length;
}

std::size_t count_extra(const Block& block, const ExtraKeys& extra) {
  const auto items = std::ranges::count_if(extra.multimodal,
                                           [&](const auto& item) { return overlaps(item, block); });
  return static_cast<std::size_t>(items) + extra.lora.has_value() +
         (block.index == 0 && !extra.cache_salt.empty()) + !extra.prompt_embeds_digests.empty();
}

void write_extra(CborWriter& cbor, const Block& block, const ExtraKeys& extra) {
  const std::size_t count = count_extra(block, extra);
  if (count == 0) return cbor.null();
  cbor.array(count);
  if (extra.lora) {
    cbor.array(3);
    cbor.text("lora");
    cbor.text(extra.lora->name);
    cbor.text(extra.lora->path);
  }
  for (const ExtraKeys::Multimodal& item : extra.multimodal) {
    if (!overlaps(item, block)) continue;
    cbor.array(3);
    cbor.text("mm");
    cbor.text(item.identifier);
    cbor.integer(item.offset - block.begin());
  }
  if (block.index == 0 && !extra.cache_salt.empty()) {
    cbor.array(2);
    cbor.text("cache_salt");
    cbor.text(extra.cache_salt);
  }
  if (!extra.prompt_embeds_digests.empty()) {
    cbor.array(2);
    cbor.text("prompt_embeds");
    cbor.bytes(extra.prompt_embeds_digests[block.index]);
  }
}

void write_cbor(MessageBuffer& out, const BlockHash& parent, const Block& block,
                const ExtraKeys& extra) {
  CborWriter cbor(out);
  cbor.array(3);
  cbor.bytes(parent.bytes());
  cbor.integer_array(block.tokens);
  write_extra(cbor, block, extra);
}

// --- What is hashed, as a pickle ---

void write_extra(PickleWriter& pickle, const Block& block, const ExtraKeys& extra) {
  int count = 0;
  if (extra.lora) {
    pickle.text("lora");
    pickle.text(extra.lora->name);
    pickle.text(extra.lora->path);
    pickle.tuple(3);
    ++count;
  }
  if (block.index == 0 && !extra.cache_salt.empty()) {
    pickle.text("cache_salt");
    pickle.text(extra.cache_salt);
    pickle.tuple(2);
    ++count;
  }
  if (count == 0) return pickle.none();
  pickle.tuple(count);
}

// False if it does not fit one frame.
bool write_pickle(MessageBuffer& out, const BlockHash& parent, const Block& block,
                  const ExtraKeys& extra) {
  PickleWriter pickle(out);
  pickle.bytes(parent.bytes());
  pickle.integer_tuple(block.tokens);
  write_extra(pickle, block, extra);
  pickle.tuple(3);
  return pickle.finish();
}

bool write_block(HashAlgo algo, MessageBuffer& out, const BlockHash& parent, const Block& block,
                 const ExtraKeys& extra) {
  if (algo == HashAlgo::kSha256) return write_pickle(out, parent, block, extra);
  write_cbor(out, parent, block, extra);
  return true;
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

// Hashes one message after the other. One thread.
class Digester {
 public:
  explicit Digester(HashAlgo algo) {
    if (algo != HashAlgo::kXxhashCbor) sha256_.emplace();
  }

  BlockHash digest(ByteView message) {
    if (!sha256_) return BlockHash(xxh3_128(message));
    sha256_->update(message);
    return BlockHash(sha256_->finish());
  }

 private:
  std::optional<Sha256> sha256_;
};

// Makes room at once, yet never so tightly that a chain growing block by block
// would be copied for every block.
void reserve(std::vector<BlockHash>& chain, std::size_t count) {
  if (count > chain.capacity()) chain.reserve(std::max(count, 2 * chain.capacity()));
}

BlockHash hash_seed(HashAlgo algo, std::string_view seed) {
  MessageBuffer message;
  write_seed(algo, message, seed);
  return Digester(algo).digest(message.view());
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
  const auto block_size = static_cast<std::size_t>(block_size_);
  const std::size_t block_count = tokens.size() / block_size;
  const std::size_t known = chain.size();
  if (block_count <= known) return {};
  if (Status status = check_extra(algo_, extra, block_count); !status) return status;

  reserve(chain, block_count);
  Digester digester(algo_);
  MessageBuffer message;
  for (std::size_t i = known; i < block_count; ++i) {
    message.clear();
    const Block block{tokens.subspan(i * block_size, block_size), i};
    const BlockHash& parent = i == 0 ? none_hash_ : chain.back();
    if (!write_block(algo_, message, parent, block, extra)) {
      chain.resize(known);
      return too_long(i);
    }
    chain.push_back(digester.digest(message.view()));
  }
  return {};
}

Result<Bytes> BlockHasher::block_input(const BlockHash& parent, std::span<const Token> block,
                                       std::size_t block_index, const ExtraKeys& extra) const {
  if (Status status = check_extra(algo_, extra, block_index + 1); !status) {
    return std::unexpected(status.error());
  }
  MessageBuffer message;
  if (!write_block(algo_, message, parent, {block, block_index}, extra)) {
    return too_long(block_index);
  }
  return Bytes(message.view().begin(), message.view().end());
}

}  // namespace newmoon
