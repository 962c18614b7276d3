#include "store/mooncake/record_key.h"

#include <gtest/gtest.h>

#include "base/testing/formats_page.h"
#include "hash/key.h"
#include "store/mooncake/key_texts.h"
#include "store/testing/blocks.h"

namespace newmoon {
namespace {

using namespace newmoon::testing;  // NOLINT: the vocabulary of these tests

TEST(RecordKey, AHoldSaysScopeTimeAndHolder) {
  const HoldKey key{.scope = scope_of(7), .until_minute = 29'000'000, .holder = "engine@host:1"};
  const std::string text = key.to_string();
  EXPECT_EQ(text, "nm1h:07070707070707070707070707070707:29000000:656e67696e6540686f73743a31");
  const auto parsed = parse_hold_key(text);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->scope, key.scope);
  EXPECT_EQ(parsed->until_minute, key.until_minute);
  EXPECT_EQ(parsed->holder, key.holder);
}

TEST(RecordKey, TheExampleOfTheFormatsPageIsAHold) {
  const auto parsed = parse_hold_key(example_lines("key hold").at(0));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->scope.hex(), "3626c87d812542e43122cfdccb097ad1");
  EXPECT_EQ(parsed->until_minute, 29'000'000);
  EXPECT_EQ(parsed->holder, "engine-a");
}

TEST(RecordKey, OtherTextIsNoHold) {
  const std::string scope = scope_of(7).hex();
  for (const std::string& text :
       {std::string(), std::string("nm1h:"), "nm1h:" + scope, "nm1h:" + scope + ":",
        "nm1h:" + scope + ":12", "nm1h:" + scope + ":x:6565", "nm1h:" + scope + ":012:6565",
        "nm1h:" + scope + ":12:656", "nm1h:" + scope + ":12:4A",
        "nm1h:" + scope.substr(1) + "g:12:65", "nm1d:" + scope, key_of(7, 1).to_string()}) {
    EXPECT_FALSE(parse_hold_key(text)) << text;
  }
}

TEST(RecordKey, RecordsAreNoValues) {
  const HoldKey hold{.scope = scope_of(7), .until_minute = 1, .holder = "x"};
  for (const std::string& text : {description_key(scope_of(7)), hold.to_string()}) {
    EXPECT_FALSE(parse_key(text)) << text;
    EXPECT_TRUE(is_record_key(text)) << text;
    EXPECT_FALSE(text.starts_with(key_prefix(scope_of(7)))) << text;
  }
  EXPECT_FALSE(is_record_key(key_of(7, 1).to_string()));
}

TEST(KeyTexts, AreThoseOfTheKeys) {
  std::vector<Key> keys = {key_of(1, 1), key_of(1, 2), key_of(1, 2, 65535), key_of(2, 2)};
  keys.push_back({scope_of(255), Shard{65535, 65535, 65535, 65535}, block_of(0)});
  keys.push_back({scope_of(0), Shard{}, BlockHash(block_of(9).bytes().first(16))});
  KeyTexts texts(keys.size());
  for (const Key& key : keys) texts.add(key);
  ASSERT_EQ(texts.views().size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(texts.views()[i], keys[i].to_string());
}

}  // namespace
}  // namespace newmoon
