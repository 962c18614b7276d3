#include "store/mooncake/key_texts.h"

#include <array>
#include <cstring>

namespace newmoon {
namespace {

// Two digits a byte, looked up: thousands of hashes are spelled for one lookup.
constexpr auto kHexPairs = [] {
  constexpr std::string_view digits = "0123456789abcdef";
  std::array<std::array<char, 2>, 256> pairs{};
  for (std::size_t byte = 0; byte < pairs.size(); ++byte) {
    pairs[byte] = {digits[byte >> 4], digits[byte & 15]};
  }
  return pairs;
}();

}  // namespace

KeyTexts::KeyTexts(std::size_t count)
    : text_(std::make_unique_for_overwrite<char[]>(count * kKeyBytesMax)) {
  views_.reserve(count);
}

void KeyTexts::add(const ScopeId& scope, const Shard& shard, const BlockHash& block) {
  if (prefix_.empty() || scope != scope_ || shard != shard_) {
    scope_ = scope;
    shard_ = shard;
    prefix_ = key_prefix(scope) + shard.to_string() + ":";
  }
  char* const begin = text_.get() + used_;
  std::memcpy(begin, prefix_.data(), prefix_.size());
  char* at = begin + prefix_.size();
  for (const std::uint8_t byte : block.bytes()) {
    std::memcpy(at, kHexPairs[byte].data(), 2);
    at += 2;
  }
  views_.emplace_back(begin, static_cast<std::size_t>(at - begin));
  used_ += views_.back().size();
}

}  // namespace newmoon
