#include "hash/value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <functional>

#include "base/random.h"
#include "hash/xxh3.h"

namespace newmoon {
namespace {

constexpr std::string_view kLayout = "block=16;dtype=bf16;tp=2";
constexpr std::uint64_t kPayloadBytes = 12;
constexpr std::uint64_t kChecksum = 0x1122334455667788;

Key sample_key() {
  return parse_key(
             "nm1:70771574f351a423aa1c6cbfa3c31520:t1p2d3g4:"
             "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea")
      .value();
}

ValueHeader sample_header() {
  ValueHeader header = make_header(sample_key(), layout_id(kLayout), kPayloadBytes);
  header.checksum = kChecksum;
  header.flags = ValueHeader::kChecksummed;
  return header;
}

Status verify(const ValueHeader& header, bool require_checksum = true) {
  return verify_header(header, sample_key(), layout_id(kLayout), kPayloadBytes, kChecksum,
                       require_checksum);
}

std::string hex_of(const ValueHeader& header) {
  return to_hex({reinterpret_cast<const std::uint8_t*>(&header), sizeof header});
}

TEST(ValueTest, HeaderGoldenBytes) {
  EXPECT_EQ(hex_of(sample_header()),
            "564b4e4d010080000c00000000000000"
            "44950cd8303e85261e1c3b675a0772b0"
            "70771574f351a423aa1c6cbfa3c31520"
            "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea"
            "04000300020001008877665544332211"
            "010020" +
                std::string(2 * 29, '0'));
}

TEST(ValueTest, FreshHeaderHasNoChecksum) {
  const ValueHeader header = make_header(sample_key(), layout_id(kLayout), kPayloadBytes);
  EXPECT_EQ(header.flags, 0);
  EXPECT_EQ(header.checksum, 0u);
}

TEST(ValueTest, ShortBlockHashIsPaddedWithZero) {
  Key key = sample_key();
  key.block = BlockHash(*from_hex("1ebe36576dcb573f26b99533a20aaeca"));
  const ValueHeader header = make_header(key, layout_id(kLayout), 1);
  EXPECT_EQ(header.block_hash_bytes, 16);
  EXPECT_EQ(to_hex(header.block_hash), "1ebe36576dcb573f26b99533a20aaeca" + std::string(32, '0'));
}

TEST(ValueTest, AcceptsWhatWasAskedFor) {
  EXPECT_TRUE(verify(sample_header()));
  ValueHeader unchecked = sample_header();
  unchecked.flags = 0, unchecked.checksum = 0;
  EXPECT_TRUE(verify(unchecked, /*require_checksum=*/false));
}

struct Damage {
  std::string field;
  std::function<void(ValueHeader&)> apply;
};

TEST(ValueTest, NamesTheFieldThatDiffers) {
  const Damage damages[] = {
      {"magic", [](ValueHeader& h) { h.magic ^= 1; }},
      {"version", [](ValueHeader& h) { h.version = 2; }},
      {"header_bytes", [](ValueHeader& h) { h.header_bytes = 120; }},
      {"payload_bytes", [](ValueHeader& h) { h.payload_bytes = 11; }},
      {"layout_id", [](ValueHeader& h) { h.layout_id[15] ^= 1; }},
      {"scope_id", [](ValueHeader& h) { h.scope_id[0] ^= 1; }},
      {"block_hash", [](ValueHeader& h) { h.block_hash[31] ^= 1; }},
      {"block_hash_bytes", [](ValueHeader& h) { h.block_hash_bytes = 16; }},
      {"shard", [](ValueHeader& h) { h.shard ^= 1; }},
      {"checksum", [](ValueHeader& h) { h.checksum ^= 1; }},
      {"checksum", [](ValueHeader& h) { h.flags = 0, h.checksum = 0; }},
      {"flags", [](ValueHeader& h) { h.flags |= 2; }},
      {"reserved", [](ValueHeader& h) { h.reserved[28] = 1; }},
  };
  for (const Damage& damage : damages) {
    ValueHeader header = sample_header();
    damage.apply(header);
    const Status status = verify(header);
    ASSERT_FALSE(status) << damage.field;
    EXPECT_EQ(status.error().code, Code::kCorrupt);
    EXPECT_THAT(status.error().message, testing::StartsWith("stored value: " + damage.field + " "));
  }
}

TEST(ValueTest, EveryFlippedBitIsRefused) {
  for (std::size_t bit = 0; bit < 8 * sizeof(ValueHeader); ++bit) {
    ValueHeader header = sample_header();
    reinterpret_cast<std::uint8_t*>(&header)[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(verify(header)) << "bit " << bit;
    EXPECT_FALSE(verify(header, /*require_checksum=*/false)) << "bit " << bit;
  }
}

TEST(ValueTest, TruncatedHeaderIsRefused) {
  using Raw = std::array<std::uint8_t, sizeof(ValueHeader)>;
  const Raw whole = std::bit_cast<Raw>(sample_header());
  for (std::size_t kept = 0; kept < offsetof(ValueHeader, reserved); ++kept) {
    Raw cut{};
    std::copy_n(whole.begin(), kept, cut.begin());
    EXPECT_FALSE(verify(std::bit_cast<ValueHeader>(cut))) << kept << " bytes kept";
  }
}

TEST(ValueTest, LayoutIdIsTheStartOfItsSha256) {
  EXPECT_EQ(to_hex(layout_id(kLayout)), "44950cd8303e85261e1c3b675a0772b0");
  EXPECT_NE(layout_id("block=16;dtype=bf16;tp=1"), layout_id(kLayout));
}

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  SeededRandom random(seed);
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  return bytes;
}

// Cuts `bytes` into fragments of odd sizes around the chunk size, some empty.
std::vector<Fragment> cut(MutableByteView bytes, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<Fragment> fragments;
  while (!bytes.empty()) {
    const std::size_t size = std::min<std::size_t>(
        bytes.size(), random.chance(20) ? 0 : random.below(random.chance(50) ? 300 : 70'000));
    fragments.push_back(bytes.first(size));
    bytes = bytes.subspan(size);
  }
  return fragments;
}

TEST(ValueTest, GatherAndScatterCopyAndHash) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Bytes source = random_bytes(SeededRandom(seed).below(400'000), seed);
    const std::uint64_t hash = XXH3_64bits(source.data(), source.size());
    const std::vector<Fragment> pieces = cut(source, seed);
    const std::vector<ConstFragment> from(pieces.begin(), pieces.end());
    ASSERT_EQ(total_bytes(from), source.size());

    Bytes value(source.size());
    EXPECT_EQ(gather(from, value, true), hash);
    EXPECT_EQ(value, source);

    Bytes target(source.size());
    const std::vector<Fragment> to = cut(target, seed + 100);
    EXPECT_EQ(scatter(value, to, true), hash);
    EXPECT_EQ(target, source);
    EXPECT_EQ(checksum_of(to), hash);
    EXPECT_EQ(checksum_of(from), hash);
  }
}

TEST(ValueTest, WithoutChecksumTheyOnlyCopy) {
  Bytes source = random_bytes(50'000, 1);
  const std::vector<Fragment> pieces = cut(source, 1);
  const std::vector<ConstFragment> from(pieces.begin(), pieces.end());
  Bytes value(source.size());
  EXPECT_EQ(gather(from, value, false), 0u);
  EXPECT_EQ(value, source);
  Bytes target(source.size());
  EXPECT_EQ(scatter(value, cut(target, 2), false), 0u);
  EXPECT_EQ(target, source);
}

TEST(ValueTest, EmptyPayload) {
  constexpr std::uint64_t kXxh3OfNothing = 0x2d06800538d394c2;
  EXPECT_EQ(gather({}, {}, true), kXxh3OfNothing);
  EXPECT_EQ(scatter({}, {}, true), kXxh3OfNothing);
  EXPECT_EQ(checksum_of(std::span<const Fragment>()), kXxh3OfNothing);
}

}  // namespace
}  // namespace newmoon
