#include "hash/block_message.h"

#include <algorithm>

namespace newmoon {
namespace {

bool overlaps(const ExtraKeys::Multimodal& item, const Block& block) {
  return item.offset < block.end() && block.begin() < item.offset + item.length;
}

bool is_salted(const Block& block, const ExtraKeys& extra) {
  return block.index == 0 && !extra.cache_salt.empty();
}

std::size_t count_extra(const Block& block, const ExtraKeys& extra) {
  const auto items = std::ranges::count_if(extra.multimodal,
                                           [&](const auto& item) { return overlaps(item, block); });
  return static_cast<std::size_t>(items) + extra.lora.has_value() + is_salted(block, extra) +
         !extra.prompt_embeds_digests.empty();
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
  if (is_salted(block, extra)) {
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

void write_extra(PickleWriter& pickle, const Block& block, const ExtraKeys& extra) {
  std::size_t count = 0;
  if (extra.lora) {
    pickle.text("lora");
    pickle.text(extra.lora->name);
    pickle.text(extra.lora->path);
    pickle.end_tuple(3);
    ++count;
  }
  if (is_salted(block, extra)) {
    pickle.text("cache_salt");
    pickle.text(extra.cache_salt);
    pickle.end_tuple(2);
    ++count;
  }
  if (count == 0) return pickle.none();
  pickle.end_tuple(count);
}

// Word by word: of a copy of up to 32 bytes gcc makes a `rep movs`, which takes as
// long as encoding all tokens of a block.
void set_parent(std::uint8_t* at, const BlockHash& parent) {
  const ByteView bytes = parent.bytes();
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::size_t i = 0;
  for (; i + kWord <= bytes.size(); i += kWord) std::memcpy(at + i, bytes.data() + i, kWord);
  for (; i < bytes.size(); ++i) at[i] = bytes[i];
}

}  // namespace

CborMessages::CborMessages(MessageBuffer& out, const ExtraKeys& extra, std::size_t parent_bytes,
                           std::size_t block_size)
    : out_(out), extra_(extra), cbor_(out) {
  cbor_.array(3);
  cbor_.bytes(Bytes(parent_bytes));
  parent_at_ = out.size() - parent_bytes;
  cbor_.array(block_size);
  tokens_at_ = out.size();
}

bool CborMessages::write(const BlockHash& parent, const Block& block) {
  set_parent(out_.at(parent_at_), parent);
  out_.truncate(tokens_at_);
  cbor_.integers(block.tokens);
  write_extra(cbor_, block, extra_);
  return true;
}

PickleMessages::PickleMessages(MessageBuffer& out, const ExtraKeys& extra, std::size_t parent_bytes,
                               std::size_t block_size)
    : out_(out), extra_(extra), pickle_(out) {
  pickle_.bytes(Bytes(parent_bytes));
  constexpr std::size_t kMemoizeBytes = 1;
  parent_at_ = out.size() - parent_bytes - kMemoizeBytes;
  pickle_.begin_tuple(block_size);
  tokens_at_ = out.size();
}

bool PickleMessages::write(const BlockHash& parent, const Block& block) {
  set_parent(out_.at(parent_at_), parent);
  out_.truncate(tokens_at_);
  pickle_.integers(block.tokens);
  pickle_.end_tuple(block.tokens.size());
  write_extra(pickle_, block, extra_);
  pickle_.end_tuple(3);
  return pickle_.finish();
}

}  // namespace newmoon
