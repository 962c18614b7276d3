#include "store/mooncake/record_key.h"

#include <charconv>

#include "base/bytes.h"

namespace newmoon {
namespace {

constexpr std::string_view kDescriptionTag = "nm1d:";
constexpr std::string_view kHoldTag = "nm1h:";

}  // namespace

std::string description_key(const ScopeId& scope) {
  return std::string(kDescriptionTag) + scope.hex();
}

std::string HoldKey::to_string() const {
  return std::string(kHoldTag) + scope.hex() + ":" + std::to_string(until_minute) + ":" +
         to_hex(as_bytes(holder));
}

std::optional<HoldKey> parse_hold_key(std::string_view text) {
  if (!text.starts_with(kHoldTag)) return std::nullopt;
  HoldKey key;
  const std::size_t hex_size = 2 * key.scope.bytes.size();
  std::string_view rest = text.substr(kHoldTag.size());
  if (!from_hex(rest.substr(0, hex_size), key.scope.bytes)) return std::nullopt;
  rest.remove_prefix(hex_size);
  if (!rest.starts_with(':')) return std::nullopt;
  const char* const end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data() + 1, end, key.until_minute);
  if (error != std::errc() || stop == end || *stop != ':') return std::nullopt;
  const std::optional<Bytes> holder = from_hex(std::string_view(stop + 1, end));
  if (!holder) return std::nullopt;
  key.holder = std::string(as_text(*holder));
  // One spelling: no leading zero, no upper case.
  if (key.to_string() != text) return std::nullopt;
  return key;
}

bool is_record_key(std::string_view text) {
  return text.starts_with(kDescriptionTag) || text.starts_with(kHoldTag);
}

}  // namespace newmoon
