// Decodes the examples and tables of docs/formats.md, so that the page stays true.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <sstream>

#include "base/testing/formats_page.h"
#include "hash/block_hash.h"
#include "hash/scope.h"
#include "hash/sha256.h"
#include "hash/value.h"

namespace newmoon {
namespace {

using newmoon::testing::bytes_example;
using newmoon::testing::example_lines;
using newmoon::testing::formats_page;
using newmoon::testing::hex_example;

constexpr std::string_view kLayout = "block=16;dtype=bf16;tp=2";

struct BlockExample {
  explicit BlockExample(HashAlgo algo) : hasher(algo, 16, "0"), tokens(16) {
    std::iota(tokens.begin(), tokens.end(), 1);
    extra.cache_salt = "policy-v1";
  }

  std::string message() const {
    return to_hex(hasher.block_input(hasher.none_hash(), tokens, 0, extra).value());
  }
  BlockHash hash() const {
    std::vector<BlockHash> chain;
    EXPECT_TRUE(hasher.extend(tokens, extra, chain));
    return chain.at(0);
  }

  BlockHasher hasher;
  std::vector<Token> tokens;
  ExtraKeys extra;
};

TEST(FormatsPageTest, NoneHash) {
  EXPECT_EQ(BlockExample(HashAlgo::kSha256Cbor).hasher.none_hash().hex(),
            hex_example("none-hash-cbor"));
  EXPECT_EQ(to_hex(sha256(bytes_example("none-hash-message-cbor"))), hex_example("none-hash-cbor"));
}

TEST(FormatsPageTest, BlockHashOfCbor) {
  const BlockExample block(HashAlgo::kSha256Cbor);
  EXPECT_EQ(block.message(), hex_example("block-message-cbor"));
  EXPECT_EQ(block.hash().hex(), hex_example("block-hash-sha256-cbor"));
  EXPECT_EQ(BlockExample(HashAlgo::kXxhashCbor).hash().hex(),
            hex_example("block-hash-xxhash-cbor"));
  const std::string event_int = std::to_string(block.hash().event_int());
  EXPECT_THAT(formats_page(),
              ::testing::Contains(::testing::HasSubstr("event integer is " + event_int)));
}

TEST(FormatsPageTest, BlockHashOfPickle) {
  const BlockExample block(HashAlgo::kSha256);
  EXPECT_EQ(block.message(), hex_example("block-message-pickle"));
  EXPECT_EQ(block.hash().hex(), hex_example("block-hash-sha256"));
}

TEST(FormatsPageTest, Scope) {
  const Scope scope{.name_space = "run-7",
                    .model = "Qwen/Qwen3-0.6B",
                    .layout = std::string(kLayout),
                    .weights = LabelIdentity{"step-42"}};
  EXPECT_EQ(to_hex(scope.canonical_cbor()), hex_example("scope-message"));
  EXPECT_EQ(scope.id().hex(), hex_example("scope-id"));
}

Key key_example() {
  const std::vector<std::string> lines = example_lines("key");
  EXPECT_EQ(lines.size(), 1u);
  return parse_key(lines.at(0)).value();
}

TEST(FormatsPageTest, Key) {
  const Key key = key_example();
  EXPECT_EQ(key.scope.hex(), hex_example("scope-id"));
  EXPECT_EQ(key.shard, (Shard{.tp = 1}));
  EXPECT_EQ(key.block.bytes().size(), 32u);
}

TEST(FormatsPageTest, Value) {
  Bytes value = bytes_example("value");
  ASSERT_GT(value.size(), sizeof(ValueHeader));
  ValueHeader header;
  std::memcpy(&header, value.data(), sizeof header);
  const Fragment payload = Fragment(value).subspan(sizeof header);
  EXPECT_EQ(as_text(payload), "KV of block0");
  const Status status = verify_header(header, key_example(), layout_id(kLayout), payload.size(),
                                      checksum_of({&payload, 1}), /*require_checksum=*/true);
  EXPECT_TRUE(status) << to_string(status.error());
}

struct Field {
  std::size_t offset;
  std::size_t bytes;
  std::string name;
  bool operator==(const Field&) const = default;
};

void PrintTo(const Field& field, std::ostream* out) {
  *out << field.name << " at " << field.offset << ", " << field.bytes << " bytes";
}

// The rows "| <offset> | <bytes> | `<name>` |" of the page: those of the value header.
std::vector<Field> header_table() {
  std::vector<Field> fields;
  for (const std::string& line : formats_page()) {
    std::istringstream words(line);
    std::string bar, name;
    Field field;
    if (!(words >> bar >> field.offset >> bar >> field.bytes >> bar >> name)) continue;
    if (name.size() < 2 || name.front() != '`') continue;
    field.name = name.substr(1, name.size() - 2);
    fields.push_back(field);
  }
  return fields;
}

#define NEWMOON_FIELD(name) \
  Field { offsetof(ValueHeader, name), sizeof(ValueHeader::name), #name }

TEST(FormatsPageTest, ValueHeaderTable) {
  EXPECT_THAT(
      header_table(),
      ::testing::IsSupersetOf(
          {NEWMOON_FIELD(magic), NEWMOON_FIELD(version), NEWMOON_FIELD(header_bytes),
           NEWMOON_FIELD(payload_bytes), NEWMOON_FIELD(layout_id), NEWMOON_FIELD(scope_id),
           NEWMOON_FIELD(block_hash), NEWMOON_FIELD(shard), NEWMOON_FIELD(checksum),
           NEWMOON_FIELD(flags), NEWMOON_FIELD(block_hash_bytes), NEWMOON_FIELD(reserved)}));
}

#undef NEWMOON_FIELD

}  // namespace
}  // namespace newmoon
