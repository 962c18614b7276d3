#include "base/bytes.h"

#include <gtest/gtest.h>

namespace newmoon {
namespace {

TEST(BytesTest, HexOfEveryByteComesBack) {
  Bytes all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(i);
  const std::string hex = to_hex(all);
  EXPECT_EQ(hex.substr(0, 8), "00010203");
  EXPECT_EQ(hex.substr(hex.size() - 4), "feff");
  EXPECT_EQ(from_hex(hex), all);
  EXPECT_EQ(to_hex({}), "");
  EXPECT_EQ(from_hex(""), Bytes());
}

TEST(BytesTest, HexMayBeUpperCase) { EXPECT_EQ(from_hex("aBCdeF"), (Bytes{0xab, 0xcd, 0xef})); }

TEST(BytesTest, EveryCharacterThatIsNoDigitIsRefused) {
  int digits = 0;
  for (int c = 0; c < 256; ++c) {
    const std::string high = {static_cast<char>(c), '0'};
    const std::string low = {'0', static_cast<char>(c)};
    EXPECT_EQ(from_hex(high).has_value(), from_hex(low).has_value());
    digits += from_hex(low).has_value();
  }
  EXPECT_EQ(digits, 22);  // 0-9, a-f, A-F
  EXPECT_EQ(from_hex("abc"), std::nullopt);
}

TEST(BytesTest, HexIntoABufferMustFit) {
  Bytes buffer(2);
  EXPECT_TRUE(from_hex("0102", buffer));
  EXPECT_EQ(buffer, (Bytes{1, 2}));
  EXPECT_FALSE(from_hex("01", buffer));
  EXPECT_FALSE(from_hex("010203", buffer));
}

TEST(BytesTest, IntegersInBothByteOrders) {
  Bytes out;
  append_be<std::uint32_t>(out, 0x01020304);
  EXPECT_EQ(out, (Bytes{1, 2, 3, 4}));
  EXPECT_EQ(load_be<std::uint32_t>(out.data()), 0x01020304U);
  EXPECT_EQ(load_le<std::uint32_t>(out.data()), 0x04030201U);
  store_le<std::uint16_t>(out.data(), 0x0506);
  EXPECT_EQ(out, (Bytes{6, 5, 3, 4}));
}

}  // namespace
}  // namespace newmoon
