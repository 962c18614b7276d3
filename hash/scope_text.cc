#include "hash/scope_text.h"

#include <array>
#include <charconv>
#include <optional>

namespace newmoon {
namespace {

constexpr std::string_view kNames[] = {"namespace=", "model=", "layout=", "weights="};
constexpr std::string_view kDigits = "0123456789ABCDEF";

bool is_escaped(char c) { return static_cast<unsigned char>(c) <= ' ' || c == '%' || c == '\x7f'; }

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (!is_escaped(c)) {
      escaped += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    escaped += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return escaped;
}

// nullopt: not what escape() writes.
std::optional<std::string> unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    if (text.size() - i < 3) return std::nullopt;
    const std::size_t high = kDigits.find(text[i + 1]);
    const std::size_t low = kDigits.find(text[i + 2]);
    if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
    plain += static_cast<char>(high << 4 | low);
    i += 2;
  }
  if (escape(plain) != text) return std::nullopt;
  return plain;
}

// The text behind `prefix`.
std::optional<std::string_view> behind(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  return text.substr(prefix.size());
}

std::optional<WeightsIdentity> parse_unique(std::string_view text) {
  UniqueIdentity unique;
  const std::size_t colon = 2 * unique.incarnation.bytes.size();
  if (text.size() < colon + 2 || text[colon] != ':') return std::nullopt;
  if (!from_hex(text.substr(0, colon), unique.incarnation.bytes)) return std::nullopt;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data() + colon + 1, end, unique.epoch);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return unique;
}

std::optional<WeightsIdentity> parse_weights(std::string_view text) {
  if (const auto label = behind(text, "label:")) return LabelIdentity{std::string(*label)};
  if (const auto unique = behind(text, "unique:")) return parse_unique(*unique);
  DigestIdentity digest;
  const auto hex = behind(text, "digest:");
  if (!hex || hex->size() != 2 * digest.sha256.size() || !from_hex(*hex, digest.sha256)) {
    return std::nullopt;
  }
  return digest;
}

}  // namespace

std::string to_string(const WeightsIdentity& weights) {
  if (const auto* digest = std::get_if<DigestIdentity>(&weights)) {
    return "digest:" + to_hex(digest->sha256);
  }
  if (const auto* label = std::get_if<LabelIdentity>(&weights)) return "label:" + label->label;
  const auto& unique = std::get<UniqueIdentity>(weights);
  return "unique:" + to_hex(unique.incarnation.bytes) + ":" + std::to_string(unique.epoch);
}

std::string describe(const Scope& scope) {
  const std::string parts[] = {scope.name_space, scope.model, scope.layout,
                               to_string(scope.weights)};
  std::string text;
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    if (i > 0) text += ' ';
    text.append(kNames[i]).append(escape(parts[i]));
  }
  return text;
}

Result<Scope> parse_scope(std::string_view text) {
  const auto wrong = [] { return fail(Code::kBadRequest, "not the description of a scope"); };
  std::array<std::string, std::size(kNames)> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    const std::size_t size = last ? text.size() : text.find(' ');
    if (size == text.npos) return wrong();
    const auto part = behind(text.substr(0, size), kNames[i]);
    const auto plain = part ? unescape(*part) : std::nullopt;
    if (!plain) return wrong();
    parts[i] = *plain;
    text.remove_prefix(last ? size : size + 1);
  }
  const std::optional<WeightsIdentity> weights = parse_weights(parts[3]);
  if (!weights) return wrong();
  return Scope{parts[0], parts[1], parts[2], *weights};
}

}  // namespace newmoon
