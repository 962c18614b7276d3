#include "hash/key.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace newmoon {
namespace {

constexpr std::string_view kKeyTag = "nm1:";

// Takes what stands before the next ':' off `rest`; all of it if there is none.
std::string_view take_field(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(':'), rest.size());
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return field;
}

// Takes "<letter><decimal, 0..65535>" off `rest`.
bool take_number(std::string_view& rest, char letter, std::uint16_t& value) {
  if (rest.empty() || rest.front() != letter) return false;
  const char* const end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data() + 1, end, value);
  if (error != std::errc()) return false;
  rest = {stop, end};
  return true;
}

std::optional<Shard> parse_shard(std::string_view text) {
  Shard shard;
  const bool parsed = take_number(text, 't', shard.tp) && take_number(text, 'p', shard.pp) &&
                      take_number(text, 'd', shard.dcp) && take_number(text, 'g', shard.group);
  if (!parsed || !text.empty()) return std::nullopt;
  return shard;
}

std::optional<Key> parse_fields(std::string_view text) {
  if (!text.starts_with(kKeyTag)) return std::nullopt;
  text.remove_prefix(kKeyTag.size());
  const std::optional<Bytes> scope = from_hex(take_field(text));
  const std::optional<Shard> shard = parse_shard(take_field(text));
  const std::optional<Bytes> block = from_hex(text);
  Key key;
  if (!scope || scope->size() != key.scope.bytes.size() || !shard) return std::nullopt;
  if (!block || block->empty() || block->size() > BlockHash::kMaxSize) return std::nullopt;
  std::copy(scope->begin(), scope->end(), key.scope.bytes.begin());
  key.shard = *shard;
  key.block = BlockHash(*block);
  return key;
}

// What of a bad key goes into a log line: its start, with no control character.
std::string excerpt(std::string_view text) {
  constexpr std::size_t kExcerptBytes = 128;
  std::string shown(text.substr(0, kExcerptBytes));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > kExcerptBytes ? shown + "..." : shown;
}

}  // namespace

std::string Shard::to_string() const {
  return "t" + std::to_string(tp) + "p" + std::to_string(pp) + "d" + std::to_string(dcp) + "g" +
         std::to_string(group);
}

std::string key_prefix(const ScopeId& scope) { return std::string(kKeyTag) + scope.hex() + ":"; }

std::string Key::to_string() const {
  return key_prefix(scope) + shard.to_string() + ":" + block.hex();
}

Result<Key> parse_key(std::string_view text) {
  // Longer than any key: do not decode what a stranger wrote at length.
  constexpr std::size_t kKeyBytesMax = 192;
  if (text.size() <= kKeyBytesMax) {
    std::optional<Key> key = parse_fields(text);
    // A key has one spelling: no upper case, no leading zeros.
    if (key && key->to_string() == text) return *std::move(key);
  }
  return fail(Code::kBadRequest, "key \"" + excerpt(text) +
                                     "\" is not nm1:<scope id, 32 hex>:t<n>p<n>d<n>g<n>:"
                                     "<block hash, lower-case hex>");
}

}  // namespace newmoon
