#include "hash/scope.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace newmoon {
namespace {

template <std::size_t kSize>
std::array<std::uint8_t, kSize> counted() {
  std::array<std::uint8_t, kSize> bytes;
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  return bytes;
}

Scope scope_with(WeightsIdentity weights) {
  return {.name_space = "run-7",
          .model = "Qwen/Qwen3-0.6B",
          .layout = "block=16;dtype=bf16;tp=2",
          .weights = std::move(weights)};
}

// Computed by an encoder of its own (Python, RFC 8949), so that ids stay as they are.
const std::string kCommon =
    "856a6e6d2d73636f70652d316572756e2d376f5177656e2f5177656e332d302e36427818"
    "626c6f636b3d31363b64747970653d626631363b74703d32";

TEST(ScopeTest, DigestGoldenBytes) {
  const Scope scope = scope_with(DigestIdentity{counted<32>()});
  EXPECT_EQ(to_hex(scope.canonical_cbor()),
            kCommon +
                "82666469676573745820"
                "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
  EXPECT_EQ(scope.id().hex(), "70771574f351a423aa1c6cbfa3c31520");
  EXPECT_FALSE(scope.is_unique());
}

TEST(ScopeTest, LabelGoldenBytes) {
  const Scope scope = scope_with(LabelIdentity{"step-42"});
  EXPECT_EQ(to_hex(scope.canonical_cbor()), kCommon + "82656c6162656c67737465702d3432");
  EXPECT_EQ(scope.id().hex(), "3626c87d812542e43122cfdccb097ad1");
  EXPECT_FALSE(scope.is_unique());
}

TEST(ScopeTest, UniqueGoldenBytes) {
  const Scope scope = scope_with(UniqueIdentity{{counted<16>()}, 300});
  EXPECT_EQ(to_hex(scope.canonical_cbor()),
            kCommon + "8366756e6971756550000102030405060708090a0b0c0d0e0f19012c");
  EXPECT_EQ(scope.id().hex(), "8b96a8820c169644127baad63884ed46");
  EXPECT_TRUE(scope.is_unique());
}

TEST(ScopeTest, UniqueWithLargeEpoch) {
  EXPECT_EQ(scope_with(UniqueIdentity{{counted<16>()}, Epoch{1} << 40}).id().hex(),
            "1febd5466b838c51aced6df92846b9cc");
}

TEST(ScopeTest, AnyFieldChangesTheId) {
  const Scope base = scope_with(UniqueIdentity{{counted<16>()}, 1});
  std::vector<Scope> scopes(9, base);
  scopes[1].name_space = "run-8";
  scopes[2].model = "Qwen/Qwen3-0.6B-Base";
  scopes[3].layout = "block=32;dtype=bf16;tp=2";
  scopes[4].weights = UniqueIdentity{{counted<16>()}, 2};
  Incarnation other{counted<16>()};
  other.bytes[15] ^= 1;
  scopes[5].weights = UniqueIdentity{other, 1};
  scopes[6].weights = DigestIdentity{counted<32>()};
  scopes[7].weights = LabelIdentity{"step-42"};
  scopes[8].weights = LabelIdentity{"step-43"};
  std::set<ScopeId> ids;
  for (const Scope& scope : scopes) ids.insert(scope.id());
  EXPECT_EQ(ids.size(), scopes.size());
}

TEST(ScopeTest, TextCannotMoveFromOneFieldToAnother) {
  Scope left = scope_with(LabelIdentity{"x"});
  Scope right = left;
  left.name_space = "ab", left.model = "c";
  right.name_space = "a", right.model = "bc";
  EXPECT_NE(left.id(), right.id());
}

TEST(ScopeTest, LabelThatReadsLikeADigestIsNone) {
  const auto digest = counted<32>();
  const Scope label = scope_with(LabelIdentity{std::string(digest.begin(), digest.end())});
  EXPECT_NE(label.id(), scope_with(DigestIdentity{digest}).id());
}

TEST(ScopeTest, IncarnationsAreDrawnFromAllBitsOfRandom) {
  SeededRandom random(1), same(1);
  const Incarnation first = draw_incarnation(random);
  EXPECT_EQ(load_le<std::uint64_t>(first.bytes.data()), same.next());
  EXPECT_EQ(load_le<std::uint64_t>(first.bytes.data() + 8), same.next());
  EXPECT_NE(draw_incarnation(random), first);
}

}  // namespace
}  // namespace newmoon
