#include "hash/cbor.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/random.h"
#include "hash/cbor_integers.h"

namespace newmoon {
namespace {

template <class Write>
std::string written(const Write& write) {
  MessageBuffer buffer;
  CborWriter cbor(buffer);
  write(cbor);
  return to_hex(buffer.view());
}

// RFC 8949, appendix A.
TEST(CborTest, IntegersOfTheStandard) {
  const std::pair<std::int64_t, std::string> examples[] = {
      {0, "00"},
      {23, "17"},
      {24, "1818"},
      {100, "1864"},
      {1000, "1903e8"},
      {1000000, "1a000f4240"},
      {1000000000000, "1b000000e8d4a51000"},
      {-1, "20"},
      {-10, "29"},
      {-100, "3863"},
      {-1000, "3903e7"},
      {std::numeric_limits<std::int64_t>::min(), "3b7fffffffffffffff"}};
  for (const auto& [value, hex] : examples) {
    EXPECT_EQ(written([&](CborWriter& cbor) { cbor.integer(value); }), hex);
  }
  EXPECT_EQ(written([](CborWriter& cbor) { cbor.unsigned_integer(~std::uint64_t{0}); }),
            "1bffffffffffffffff");
}

TEST(CborTest, TextBytesArrayNull) {
  EXPECT_EQ(written([](CborWriter& cbor) { cbor.text("IETF"); }), "6449455446");
  EXPECT_EQ(written([](CborWriter& cbor) { cbor.bytes(*from_hex("01020304")); }), "4401020304");
  EXPECT_EQ(written([](CborWriter& cbor) { cbor.array(25); }), "9819");
  EXPECT_EQ(written([](CborWriter& cbor) { cbor.null(); }), "f6");
}

TEST(CborTest, TextLongerThanTheStack) {
  const std::string text(70'000, 'x');
  EXPECT_EQ(written([&](CborWriter& cbor) { cbor.text(text); }),
            "7a00011170" + to_hex(as_bytes(text)));
}

// Around every border between two forms, at every place of a group of four.
std::vector<std::int32_t> border_values() {
  std::vector<std::int32_t> values;
  for (const std::int64_t border :
       {0ll, 24ll, 256ll, 65536ll, 1ll << 31, -24ll, -256ll, -65536ll}) {
    for (std::int64_t value = border - 2; value <= border + 2; ++value) {
      const bool fits = value == static_cast<std::int32_t>(value);
      if (fits) values.push_back(static_cast<std::int32_t>(value));
    }
  }
  values.push_back(std::numeric_limits<std::int32_t>::min());
  return values;
}

void expect_same_as_one_by_one(std::span<const std::int32_t> values) {
  const std::string expected = written([&](CborWriter& cbor) {
    for (const std::int32_t value : values) cbor.integer(value);
  });
  EXPECT_EQ(written([&](CborWriter& cbor) { cbor.integers(values); }), expected);

  Bytes portable(cbor_integers_room(values.size()));
  const std::uint8_t* const end = write_cbor_integers_portable(portable.data(), values);
  portable.resize(static_cast<std::size_t>(end - portable.data()));
  EXPECT_EQ(to_hex(portable), expected);
}

TEST(CborTest, IntegersEqualEachAlone) {
  const std::vector<std::int32_t> borders = border_values();
  SeededRandom random(3);
  for (std::size_t count = 0; count < 70; ++count) {
    for (int round = 0; round < 50; ++round) {
      std::vector<std::int32_t> values(count);
      const bool negatives = random.chance(20);
      for (std::int32_t& value : values) {
        value = random.chance(50) ? borders[random.below(borders.size())]
                                  : static_cast<std::int32_t>(random.next() >> random.below(64));
        if (!negatives && value < 0) value = ~value;
      }
      expect_same_as_one_by_one(values);
    }
  }
}

// The vector form may write behind the end, but no further than it asked room for.
TEST(CborTest, IntegersStayWithinTheirRoom) {
  for (std::size_t count = 0; count < 40; ++count) {
    for (const std::int32_t value : {0, 1 << 20, -1}) {
      const std::vector<std::int32_t> values(count, value);
      Bytes exact(cbor_integers_room(count) + 1, 0xee);
      write_cbor_integers(exact.data(), values);
      EXPECT_EQ(exact.back(), 0xee);
    }
  }
}

}  // namespace
}  // namespace newmoon
