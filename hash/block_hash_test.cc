// Vectors computed by vLLM 0.32 itself (PYTHONHASHSEED=0 where no other seed is
// named, 16 tokens a block).
#include "hash/block_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/random.h"
#include "hash/sha256.h"

namespace newmoon {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

using Hexes = std::vector<std::string>;

constexpr std::string_view kNoneSha256Cbor =
    "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e";
constexpr std::string_view kNoneSha256 =
    "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c";

std::vector<Token> counted(int count) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

const std::vector<Token> kAllSizes = {0,          23, 24, 255, 256, 65535, 65536, 151643,
                                      2147483647, 7,  7,  7,   7,   7,     7,     7};

ExtraKeys salted(std::string salt) {
  ExtraKeys extra;
  extra.cache_salt = std::move(salt);
  return extra;
}

ExtraKeys with_lora() {
  ExtraKeys extra;
  extra.lora = {.name = "my-lora", .path = "/l/my-lora"};
  return extra;
}

BlockHasher hasher_of(HashAlgo algo) { return BlockHasher(algo, 16, "0"); }

Hexes chain_of(const BlockHasher& hasher, std::span<const Token> tokens,
               const ExtraKeys& extra = {}) {
  std::vector<BlockHash> chain;
  const Status status = hasher.extend(tokens, extra, chain);
  EXPECT_TRUE(status) << to_string(status.error());
  Hexes hexes;
  for (const BlockHash& hash : chain) hexes.push_back(hash.hex());
  return hexes;
}

std::string input_of(const BlockHasher& hasher, std::span<const Token> block,
                     const ExtraKeys& extra = {}) {
  return to_hex(hasher.block_input(hasher.none_hash(), block, 0, extra).value());
}

// --- sha256_cbor ---

TEST(Sha256CborTest, NoneHash) {
  EXPECT_EQ(hasher_of(HashAlgo::kSha256Cbor).none_hash().hex(), kNoneSha256Cbor);
}

TEST(Sha256CborTest, PlainTokens) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256Cbor);
  EXPECT_THAT(
      chain_of(hasher, counted(32)),
      ElementsAreArray(Hexes{"202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
                             "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf"}));
  EXPECT_EQ(input_of(hasher, counted(16)),
            "835820" + std::string(kNoneSha256Cbor) + "900102030405060708090a0b0c0d0e0f10f6");
}

TEST(Sha256CborTest, CacheSaltInTheFirstBlockOnly) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256Cbor);
  EXPECT_THAT(
      chain_of(hasher, counted(32), salted("policy-v1")),
      ElementsAreArray(Hexes{"54e85495805a7166a5b1eb9c7e1178cdfda1febf0ff61d89d32928727f9be9b7",
                             "8ca487af9d4ed8e1af6574a0c153312b3253845f5f004ca531d0aeeec0ddb4be"}));
  EXPECT_EQ(input_of(hasher, counted(16), salted("policy-v1")),
            "835820" + std::string(kNoneSha256Cbor) +
                "900102030405060708090a0b0c0d0e0f1081826a63616368655f73616c7469706f6c6963792d7631");
}

TEST(Sha256CborTest, TokensOfAllSizes) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256Cbor);
  EXPECT_THAT(
      chain_of(hasher, kAllSizes),
      ElementsAreArray(Hexes{"21aedf97b579aeae777357b3c4f4126bad1e425567d10e72f1e45b308ea2931d"}));
  EXPECT_EQ(input_of(hasher, kAllSizes),
            "835820" + std::string(kNoneSha256Cbor) +
                "900017181818ff19010019ffff1a000100001a0002505b1a7fffffff07070707070707f6");
}

TEST(Sha256CborTest, LoraInEveryBlock) {
  EXPECT_THAT(
      chain_of(hasher_of(HashAlgo::kSha256Cbor), counted(32), with_lora()),
      ElementsAreArray(Hexes{"2ac9fe6a2a4388a42c6dd557a1cb768b28b150d753ebaf7677e56607cb4265c7",
                             "a66e4d4ff9dacbea5984172714dc54865dfb89641f89a82ef248c4663abe33e7"}));
}

// The first block with `extra`, the second with none.
Hexes chain_with_extra_in_first(const ExtraKeys& extra) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256Cbor);
  const std::vector<Token> tokens = counted(32);
  std::vector<BlockHash> chain;
  EXPECT_TRUE(hasher.extend(std::span(tokens).first(16), extra, chain));
  EXPECT_TRUE(hasher.extend(tokens, {}, chain));
  return {chain[0].hex(), chain[1].hex()};
}

// vLLM's vector has the item begin 3 tokens before a block of index 0, which only
// block_input() of a later block can express; its bytes depend on the distance alone.
TEST(Sha256CborTest, MultimodalItemThatBeganBeforeItsBlock) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256Cbor);
  ExtraKeys extra;
  extra.multimodal = {{.identifier = "abc", .offset = 13, .length = 5}};
  const Bytes input =
      hasher.block_input(hasher.none_hash(), std::vector<Token>(16, 1), 1, extra).value();
  EXPECT_EQ(to_hex(input), "835820" + std::string(kNoneSha256Cbor) +
                               "9001010101010101010101010101010101"
                               "8183626d6d6361626322");
}

// The same vector with its first message put together from its parts.
TEST(Sha256CborTest, MultimodalAndSaltVector) {
  const std::string input = "835820" + std::string(kNoneSha256Cbor) +
                            "900102030405060708090a0b0c0d0e0f10"
                            "82"
                            "83626d6d6361626322"
                            "826a63616368655f73616c746173";
  std::vector<BlockHash> chain = {BlockHash(sha256(*from_hex(input)))};
  EXPECT_EQ(chain[0].hex(), "071c2e6bb5efc3dd929c34ca8764e87fd8109abcb920dd80483c71265eb529bf");
  ASSERT_TRUE(hasher_of(HashAlgo::kSha256Cbor).extend(counted(32), {}, chain));
  EXPECT_EQ(chain[1].hex(), "9028674943dc4ae9000e6d5ac16e093e430eb4c16e892ede81b31c3fb1bd9fc7");
}

TEST(Sha256CborTest, PromptEmbeds) {
  ExtraKeys extra;
  extra.prompt_embeds_digests = {Bytes(32, 0x11)};
  EXPECT_THAT(
      chain_with_extra_in_first(extra),
      ElementsAreArray(Hexes{"ebc495f8b000d40b6f036e166e652eb84490bfdbab13316537464daf734600ad",
                             "004f310657f44c8d8a5a9dc0e66522bf1d815a2dcfebac76a2560f9d55dcdbd3"}));
}

TEST(Sha256CborTest, FixedSeed) {
  const BlockHasher hasher(HashAlgo::kSha256Cbor, 16, std::nullopt);
  EXPECT_EQ(hasher.none_hash().hex(),
            "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0");
  EXPECT_THAT(
      chain_of(hasher, counted(32)),
      ElementsAreArray(Hexes{"cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682",
                             "2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf"}));
}

TEST(Sha256CborTest, EventIntIsTheEndOfTheHash) {
  std::vector<BlockHash> chain;
  ASSERT_TRUE(hasher_of(HashAlgo::kSha256Cbor).extend(counted(16), salted("policy-v1"), chain));
  EXPECT_EQ(chain[0].event_int(), 15215737288280238519u);
}

// --- sha256 (pickle) ---

TEST(Sha256PickleTest, NoneHash) {
  EXPECT_EQ(hasher_of(HashAlgo::kSha256).none_hash().hex(), kNoneSha256);
  EXPECT_EQ(to_hex(sha256(*from_hex("80059505000000000000008c0130942e"))), kNoneSha256);
}

TEST(Sha256PickleTest, PlainTokens) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256);
  EXPECT_THAT(
      chain_of(hasher, counted(32)),
      ElementsAreArray(Hexes{"bea72b7d33de03c1aa715efbb492d0e0d3801f00c1f985756896072ae8b31325",
                             "2744667f6645310ff670b0c5d7c64987ffa5940de5a549f17d92dcbb5b559e31"}));
  EXPECT_EQ(input_of(hasher, counted(16)),
            "8005954a000000000000004320" + std::string(kNoneSha256) +
                "94284b014b024b034b044b054b064b074b084b094b0a4b0b4b0c4b0d4b0e4b0f4b1074944e87942e");
}

TEST(Sha256PickleTest, CacheSaltInTheFirstBlockOnly) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256);
  EXPECT_THAT(
      chain_of(hasher, counted(32), salted("policy-v1")),
      ElementsAreArray(Hexes{"9f6c84a9ad4783d1a3f0b15eb42ccc0bc4e32f80a24df96832b32d310d2ad4c6",
                             "f3d280f8e1f3136b66ec60388d7b6f9ab77d1fcb9591f9a880bbe39300132237"}));
  const std::string input = input_of(hasher, counted(16), salted("policy-v1"));
  EXPECT_THAT(input, testing::StartsWith("8005956600000000000000"));
  EXPECT_THAT(input, testing::EndsWith(
                         "74948c0a63616368655f73616c74948c09706f6c6963792d7631948694859487942e"));
}

TEST(Sha256PickleTest, TokensOfAllSizes) {
  EXPECT_THAT(
      chain_of(hasher_of(HashAlgo::kSha256), kAllSizes),
      ElementsAreArray(Hexes{"3ac5303ea982c61766d52854cf9f6a8cac6edf2fc9df84b61529dc394d7973c6"}));
}

TEST(Sha256PickleTest, LoraInEveryBlock) {
  EXPECT_THAT(
      chain_of(hasher_of(HashAlgo::kSha256), counted(32), with_lora()),
      ElementsAreArray(Hexes{"d6544343b60fb04259bf25d77b922708e8b5c11eac7d9b392b3618f7804e567d",
                             "9894cd9fb59d7ab5a4a3cd08c99beed2704434c2ed831917d61c4acb11a3ab9f"}));
}

TEST(Sha256PickleTest, FixedSeed) {
  const BlockHasher hasher(HashAlgo::kSha256, 16, std::nullopt);
  EXPECT_EQ(hasher.none_hash().hex(),
            "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198");
  EXPECT_THAT(
      chain_of(hasher, counted(32)),
      ElementsAreArray(Hexes{"7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf",
                             "8e717becdc2054b7a3223b7b844f462c0db0ac86287b752b16d077ad0843c577"}));
}

void expect_refused(HashAlgo algo, const ExtraKeys& extra, std::string_view why) {
  std::vector<BlockHash> chain = {BlockHash(Bytes(32, 1))};
  const Status status = hasher_of(algo).extend(counted(48), extra, chain);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kBadRequest);
  EXPECT_THAT(status.error().message, HasSubstr(why));
  EXPECT_EQ(chain.size(), 1u);
  EXPECT_FALSE(hasher_of(algo).block_input(chain[0], counted(16), 2, extra));
}

TEST(Sha256PickleTest, RefusesWhatDependsOnObjectIdentity) {
  ExtraKeys extra;
  extra.multimodal = {{.identifier = "abc", .offset = 0, .length = 5}};
  expect_refused(HashAlgo::kSha256, extra, "use sha256_cbor");
  extra.multimodal.clear();
  extra.prompt_embeds_digests.assign(3, Bytes(32, 0x11));
  expect_refused(HashAlgo::kSha256, extra, "use sha256_cbor");
}

TEST(Sha256PickleTest, RefusesASecondFrame) {
  ExtraKeys extra = with_lora();
  extra.lora->path.assign(65'536, 'x');
  expect_refused(HashAlgo::kSha256, extra, "too long for one pickle frame");
}

// --- xxhash_cbor ---

TEST(XxhashCborTest, Vectors) {
  const BlockHasher hasher = hasher_of(HashAlgo::kXxhashCbor);
  EXPECT_EQ(hasher.none_hash().hex(), "1ebe36576dcb573f26b99533a20aaeca");
  EXPECT_THAT(chain_of(hasher, counted(32)),
              ElementsAreArray(
                  Hexes{"c2d7a75070fc6d6b0c3fb0af456c1009", "93add93233ea572fb2e2b1685bac6f8d"}));
  EXPECT_THAT(chain_of(hasher, counted(32), salted("policy-v1")),
              ElementsAreArray(
                  Hexes{"c339b95ba0f326fadd9a4652d974c186", "ecb3cb1af4d62e285f96869057da183d"}));
  EXPECT_THAT(chain_of(hasher, kAllSizes),
              ElementsAreArray(Hexes{"7a3c17a51713497b22bad0dbc8df6177"}));
}

// --- What holds for all ---

class EveryAlgoTest : public testing::TestWithParam<HashAlgo> {};

INSTANTIATE_TEST_SUITE_P(All, EveryAlgoTest,
                         testing::Values(HashAlgo::kSha256, HashAlgo::kSha256Cbor,
                                         HashAlgo::kXxhashCbor),
                         [](const auto& info) { return std::string(to_string(info.param)); });

std::vector<Token> random_tokens(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.next() >> random.below(64));
  return tokens;
}

TEST_P(EveryAlgoTest, NameIsParsedBack) {
  EXPECT_EQ(parse_hash_algo(to_string(GetParam())).value(), GetParam());
}

TEST_P(EveryAlgoTest, ChainGrownInPiecesEqualsChainMadeAtOnce) {
  const BlockHasher hasher(GetParam(), 7, "0");
  ExtraKeys extra = with_lora();
  extra.cache_salt = "s";
  if (GetParam() != HashAlgo::kSha256) {
    extra.multimodal = {{"a", 3, 9}, {"b", 12, 0}, {"b", 12, 30}, {"c", 300, 1}};
  }
  const std::vector<Token> tokens = random_tokens(1000, 7);
  std::vector<BlockHash> at_once;
  ASSERT_TRUE(hasher.extend(tokens, extra, at_once));
  ASSERT_EQ(at_once.size(), 142u);

  SeededRandom random(8);
  std::vector<BlockHash> grown;
  for (std::size_t count = 0; count < tokens.size(); count += random.below(40)) {
    ASSERT_TRUE(hasher.extend(std::span(tokens).first(count), extra, grown));
    ASSERT_EQ(grown.size(), count / 7);
  }
  ASSERT_TRUE(hasher.extend(tokens, extra, grown));
  EXPECT_EQ(grown, at_once);
}

TEST_P(EveryAlgoTest, HashIsThatOfTheBlockInput) {
  const BlockHasher hasher(GetParam(), 3, "0");
  const std::vector<Token> tokens = random_tokens(30, 9);
  std::vector<BlockHash> chain;
  ASSERT_TRUE(hasher.extend(tokens, salted("s"), chain));
  if (GetParam() == HashAlgo::kXxhashCbor) return;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const BlockHash& parent = i == 0 ? hasher.none_hash() : chain[i - 1];
    const Bytes input =
        hasher.block_input(parent, std::span(tokens).subspan(3 * i, 3), i, salted("s")).value();
    EXPECT_EQ(to_hex(sha256(input)), chain[i].hex());
  }
}

TEST_P(EveryAlgoTest, PartOfABlockIsNotHashed) {
  std::vector<BlockHash> chain;
  ASSERT_TRUE(hasher_of(GetParam()).extend(counted(15), {}, chain));
  EXPECT_TRUE(chain.empty());
  ASSERT_TRUE(hasher_of(GetParam()).extend(counted(31), {}, chain));
  EXPECT_EQ(chain.size(), 1u);
}

TEST_P(EveryAlgoTest, EachExtraKeyChangesTheHash) {
  const BlockHasher hasher = hasher_of(GetParam());
  ExtraKeys other_path = with_lora();
  other_path.lora->path += "2";
  const Hexes chains[] = {chain_of(hasher, counted(16)), chain_of(hasher, counted(16), salted("a")),
                          chain_of(hasher, counted(16), salted("b")),
                          chain_of(hasher, counted(16), with_lora()),
                          chain_of(hasher, counted(16), other_path)};
  for (const Hexes& one : chains) EXPECT_EQ(std::ranges::count(chains, one), 1);
}

// --- Multimodal and prompt embeds, for CBOR ---

std::string extra_of(std::size_t block_index, std::vector<ExtraKeys::Multimodal> items) {
  const BlockHasher hasher = hasher_of(HashAlgo::kSha256Cbor);
  ExtraKeys extra;
  extra.multimodal = std::move(items);
  const Bytes input =
      hasher.block_input(hasher.none_hash(), counted(16), block_index, extra).value();
  return to_hex(ByteView(input).subspan(3 + 32 + 17));
}

TEST(MultimodalTest, OnlyInBlocksItOverlaps) {
  const std::vector<ExtraKeys::Multimodal> item = {{"i", 16, 17}};
  EXPECT_EQ(extra_of(0, item), "f6");
  EXPECT_EQ(extra_of(1, item), "8183626d6d616900");
  EXPECT_EQ(extra_of(2, item), "8183626d6d61692f");
  EXPECT_EQ(extra_of(3, item), "f6");
}

TEST(MultimodalTest, SeveralInOneBlockKeepTheirOrder) {
  EXPECT_EQ(extra_of(0, {{"i", 0, 2}, {"j", 15, 9}}), "8283626d6d61690083626d6d616a0f");
}

TEST(MultimodalTest, FarOffsetsTakeLongHeads) {
  EXPECT_EQ(extra_of(20, {{"i", 0, 1000}}), "8183626d6d616939013f");
}

TEST(MultimodalTest, RefusesOffsetsThatOverflow) {
  for (const auto& item : {ExtraKeys::Multimodal{"i", -1, 5}, ExtraKeys::Multimodal{"i", 5, -1},
                           ExtraKeys::Multimodal{"i", INT64_MAX, 1}}) {
    ExtraKeys extra;
    extra.multimodal = {item};
    expect_refused(HashAlgo::kSha256Cbor, extra, "multimodal item");
  }
}

TEST(PromptEmbedsTest, RefusesTooFewOrOtherThanSha256) {
  ExtraKeys extra;
  extra.prompt_embeds_digests.assign(2, Bytes(32, 0x11));
  expect_refused(HashAlgo::kSha256Cbor, extra, "2 entries for 3 blocks");
  extra.prompt_embeds_digests.assign(3, Bytes(31, 0x11));
  expect_refused(HashAlgo::kSha256Cbor, extra, "31 bytes");
}

TEST(BlockHashTest, UnknownAlgorithmIsNamed) {
  const Result<HashAlgo> algo = parse_hash_algo("xxhash");
  ASSERT_FALSE(algo);
  EXPECT_EQ(algo.error().code, Code::kBadRequest);
  EXPECT_THAT(algo.error().message, HasSubstr("\"xxhash\""));
}

TEST(BlockHashTest, HashesOfOtherLengthDiffer) {
  EXPECT_NE(BlockHash(Bytes(16, 0)), BlockHash(Bytes(32, 0)));
  EXPECT_EQ(BlockHash().event_int(), 0u);
}

}  // namespace
}  // namespace newmoon
