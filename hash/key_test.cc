#include "hash/key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace newmoon {
namespace {

constexpr std::string_view kText =
    "nm1:000102030405060708090a0b0c0d0e0f:t1p2d3g65535:"
    "202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea";

Key key_of_text() {
  Key key;
  for (std::uint8_t i = 0; i < 16; ++i) key.scope.bytes[i] = i;
  key.shard = {.tp = 1, .pp = 2, .dcp = 3, .group = 65535};
  key.block =
      BlockHash(*from_hex("202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea"));
  return key;
}

std::string replaced(std::string_view what, std::string_view with) {
  std::string text(kText);
  return text.replace(text.find(what), what.size(), with);
}

TEST(KeyTest, GoldenText) { EXPECT_EQ(key_of_text().to_string(), kText); }

TEST(KeyTest, ParsesWhatItWrites) {
  const Result<Key> key = parse_key(kText);
  ASSERT_TRUE(key) << to_string(key.error());
  EXPECT_EQ(*key, key_of_text());
}

TEST(KeyTest, ParsesSixteenByteHash) {
  Key key = key_of_text();
  key.block = BlockHash(*from_hex("1ebe36576dcb573f26b99533a20aaeca"));
  EXPECT_EQ(parse_key(key.to_string()).value(), key);
}

TEST(KeyTest, StartsWithItsScopesPrefix) {
  const std::string prefix = key_prefix(key_of_text().scope);
  EXPECT_EQ(prefix, "nm1:000102030405060708090a0b0c0d0e0f:");
  EXPECT_TRUE(kText.starts_with(prefix));
}

TEST(KeyTest, PackedShardKeepsEveryField) {
  EXPECT_EQ((Shard{.tp = 1, .pp = 2, .dcp = 3, .group = 4}.packed()), 0x0001000200030004u);
}

TEST(KeyTest, RefusesOtherForms) {
  const std::string longer = std::string(kText) + "00";
  const std::string bad[] = {"",
                             "nm1:",
                             std::string(kText.substr(0, 50)),
                             longer,
                             std::string(kText) + ":",
                             std::string(kText.substr(0, kText.size() - 1)),
                             replaced("nm1", "nm2"),
                             replaced("0f:", "0F:"),
                             replaced("0f:", ":"),
                             replaced("0f:", "0f00:"),
                             replaced("t1", "t01"),
                             replaced("t1", "t-1"),
                             replaced("t1", "t"),
                             replaced("t1p2", "p2t1"),
                             replaced("65535", "65536"),
                             replaced("65535", "65535 "),
                             replaced("202d", "202D"),
                             replaced("202d", "20 d"),
                             std::string(kText.substr(0, kText.rfind(':') + 1))};
  for (const std::string& text : bad) {
    const Result<Key> key = parse_key(text);
    ASSERT_FALSE(key) << text;
    EXPECT_EQ(key.error().code, Code::kBadRequest);
  }
}

TEST(KeyTest, ErrorIsOneShortPrintableLine) {
  const Result<Key> key = parse_key("bad\nkey" + std::string(100'000, '\x01'));
  ASSERT_FALSE(key);
  EXPECT_THAT(key.error().message, testing::StartsWith("key \"bad?key??"));
  EXPECT_LT(key.error().message.size(), 300u);
}

// Whatever is accepted is the one spelling of its key.
void expect_canonical_or_refused(const std::string& text) {
  const Result<Key> key = parse_key(text);
  if (key) {
    EXPECT_EQ(key->to_string(), text);
  } else {
    EXPECT_EQ(key.error().code, Code::kBadRequest);
  }
}

TEST(KeyTest, RandomStrings) {
  SeededRandom random(20);
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random.below(200), '\0');
    for (char& c : text) c = static_cast<char>(random.next());
    expect_canonical_or_refused(text);
    expect_canonical_or_refused("nm1:" + text);
  }
}

TEST(KeyTest, RandomlyDamagedKeys) {
  constexpr std::string_view kAlphabet = "0123456789abcdefABCDEF:tpdgnm -+.\0xz";
  SeededRandom random(21);
  int accepted = 0;
  for (int round = 0; round < 50'000; ++round) {
    std::string text(kText);
    for (std::uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
      const std::size_t at = random.below(text.size());
      const char c = kAlphabet[random.below(kAlphabet.size())];
      if (random.chance(60)) {
        text[at] = c;
      } else if (random.chance(50)) {
        text.insert(at, 1, c);
      } else {
        text.erase(at, 1 + random.below(3));
      }
    }
    expect_canonical_or_refused(text);
    accepted += parse_key(text).has_value();
  }
  EXPECT_GT(accepted, 1000);  // the damage does reach what lies behind the first checks
}

}  // namespace
}  // namespace newmoon
