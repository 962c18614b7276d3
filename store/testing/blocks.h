// Blocks and keys that the tests of stores share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hash/value.h"
#include "store/kv_store.h"

namespace newmoon::testing {

inline ScopeId scope_of(std::uint8_t number) {
  ScopeId scope;
  scope.bytes.fill(number);
  return scope;
}

inline BlockHash block_of(std::uint64_t number) {
  std::array<std::uint8_t, 32> bytes{};
  store_be(bytes.data() + 24, number);
  return BlockHash(bytes);
}

inline std::vector<BlockHash> blocks_of(std::uint64_t first, std::size_t count) {
  std::vector<BlockHash> blocks;
  for (std::size_t i = 0; i < count; ++i) blocks.push_back(block_of(first + i));
  return blocks;
}

inline Key key_of(std::uint8_t scope, std::uint64_t block, std::uint16_t rank = 0) {
  return {scope_of(scope), Shard{.tp = rank}, block_of(block)};
}

inline LayoutId test_layout() { return layout_id("layout of the store tests"); }

// A block's bytes in several fragments of uneven size. Two with the same seed are
// equal; no address is shared.
class TestBlock {
 public:
  TestBlock(std::size_t bytes, std::uint64_t seed, std::size_t fragments = 3)
      : bytes_(bytes), fragments_(fragments) {
    for (std::size_t i = 0; i < bytes; ++i) {
      bytes_[i] = static_cast<std::uint8_t>((seed * 31 + i * 7) ^ (i >> 8));
    }
    cut();
  }
  TestBlock(TestBlock&& other) noexcept : TestBlock(std::move(other.bytes_), other.fragments_) {}

  const Bytes& bytes() const { return bytes_; }
  std::span<const ConstFragment> source() const { return source_; }
  std::span<const Fragment> target() const { return target_; }

 private:
  TestBlock(Bytes bytes, std::size_t fragments) : bytes_(std::move(bytes)), fragments_(fragments) {
    cut();
  }

  void cut() {
    std::size_t at = 0;
    for (std::size_t i = 0; i < fragments_; ++i) {
      const std::size_t left = bytes_.size() - at;
      const std::size_t size = i + 1 == fragments_ ? left : left / 2;
      source_.emplace_back(bytes_.data() + at, size);
      target_.emplace_back(bytes_.data() + at, size);
      at += size;
    }
  }

  Bytes bytes_;
  std::size_t fragments_;
  std::vector<ConstFragment> source_;
  std::vector<Fragment> target_;
};

inline PutItem put_item(const Key& key, const TestBlock& block, bool checksum = true) {
  return {key, make_header(key, test_layout(), block.bytes().size()), block.source(), checksum};
}

inline Status put_one(KvStore& store, const Key& key, const TestBlock& block) {
  const PutItem item = put_item(key, block);
  return store.put({&item, 1}).at(0);
}

inline Status put_one(KvStore& store, const Key& key, std::size_t bytes = 100) {
  return put_one(store, key, TestBlock(bytes, key.block.event_int()));
}

inline Result<GetValue> get_one(KvStore& store, const Key& key, TestBlock& into) {
  const GetItem item{key, into.target()};
  return store.get({&item, 1}).at(0);
}

// Whether the key is there with the bytes that put_one(store, key, bytes) stored;
// the code of whatever is wrong otherwise, kInternal for other bytes.
inline Status check_one(KvStore& store, const Key& key, std::size_t bytes = 100) {
  TestBlock into(bytes, 12345);
  const Result<GetValue> got = get_one(store, key, into);
  if (!got) return std::unexpected(got.error());
  Status verified =
      verify_header(got->header, key, test_layout(), bytes, got->payload_checksum, true);
  if (!verified) return verified;
  if (into.bytes() != TestBlock(bytes, key.block.event_int()).bytes()) {
    return fail(Code::kInternal, "other bytes than those put");
  }
  return {};
}

inline bool is_there(KvStore& store, const Key& key) {
  const Result<std::size_t> hits = store.hit_prefix(key.scope, {&key.shard, 1}, {&key.block, 1});
  return hits && *hits == 1;
}

}  // namespace newmoon::testing
