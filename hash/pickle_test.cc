// Compared with what CPython's own pickle.dumps(..., protocol=5) makes.
#include "hash/pickle.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "hash/block_hash.h"
#include "hash/sha256.h"

namespace newmoon {
namespace {

const std::string kHead = "4320000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f94";

Bytes message(std::vector<Token> tokens, const ExtraKeys& extra = {}) {
  Bytes parent(32);
  std::iota(parent.begin(), parent.end(), std::uint8_t{0});
  const BlockHasher hasher(HashAlgo::kSha256, 1, "0");
  return hasher.block_input(BlockHash(parent), tokens, 0, extra).value();
}

TEST(PickleTest, TuplesOfAllForms) {
  EXPECT_EQ(to_hex(message({7})), "8005952b00000000000000" + kHead + "4b0785944e87942e");
  EXPECT_EQ(to_hex(message({-1, 300})),
            "8005953100000000000000" + kHead + "4affffffff4d2c0186944e87942e");
  EXPECT_EQ(to_hex(message({70000, 255, std::numeric_limits<Token>::min()})),
            "8005953500000000000000" + kHead + "4a701101004bff4a0000008087944e87942e");
  EXPECT_EQ(to_hex(message({65535, 65536, 256, 0})),
            "8005953700000000000000" + kHead + "284dffff4a000001004d00014b0074944e87942e");
}

ExtraKeys lora(std::size_t name_bytes, std::size_t path_bytes) {
  ExtraKeys extra;
  extra.lora = {.name = std::string(name_bytes, 'n'), .path = std::string(path_bytes, 'p')};
  return extra;
}

TEST(PickleTest, StringsOfBothForms) {
  const Bytes pickle = message({1, 2}, lora(255, 256));
  EXPECT_EQ(pickle.size(), 586u);
  EXPECT_EQ(to_hex(sha256(pickle)),
            "32e2b187673f79522d1faf91db8333b9a81672843fed76afde4ecbfd9b9c6291");
}

TEST(PickleTest, LongestStringsOfOneFrame) {
  EXPECT_EQ(to_hex(sha256(message({1, 2}, lora(1, 65000)))),
            "43d6203342fb8a6e203d534f00914777a8d7e90d0a84924c23a0e6e2edc0d3d3");
}

}  // namespace
}  // namespace newmoon
