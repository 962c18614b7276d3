#include "base/bytes.h"

#include <array>

namespace newmoon {
namespace {

constexpr std::uint8_t kNoDigit = 0xff;

// Indexed by character. A lookup of 8,192 blocks in the seed's form is half a million
// digits, so a table instead of comparisons.
constexpr std::array<std::uint8_t, 256> kHexDigits = [] {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (std::uint8_t i = 0; i < 10; ++i) digits['0' + i] = i;
  for (std::uint8_t i = 0; i < 6; ++i) digits['a' + i] = digits['A' + i] = 10 + i;
  return digits;
}();

}  // namespace

std::string to_hex(ByteView bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(bytes.size() * 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    hex[2 * i] = kDigits[bytes[i] >> 4];
    hex[2 * i + 1] = kDigits[bytes[i] & 15];
  }
  return hex;
}

bool from_hex(std::string_view hex, MutableByteView out) {
  if (hex.size() != out.size() * 2) return false;
  const ByteView digits = as_bytes(hex);
  bool all_digits = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint8_t high = kHexDigits[digits[2 * i]];
    const std::uint8_t low = kHexDigits[digits[2 * i + 1]];
    all_digits = all_digits && high != kNoDigit && low != kNoDigit;
    out[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return all_digits;
}

std::optional<Bytes> from_hex(std::string_view hex) {
  Bytes bytes(hex.size() / 2);
  if (!from_hex(hex, bytes)) return std::nullopt;
  return bytes;
}

}  // namespace newmoon
