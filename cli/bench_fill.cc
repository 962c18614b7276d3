#include "cli/bench_fill.h"

#include <algorithm>
#include <array>
#include <vector>

namespace newmoon {
namespace {

constexpr std::size_t kValueBytes = 64;

}  // namespace

BlockHash numbered_hash(std::uint64_t number) {
  std::array<std::uint8_t, 32> bytes{};
  store_be(bytes.data(), number * 0x9e3779b97f4a7c15ULL);  // spread as a digest is
  store_be(bytes.data() + 8, number);
  return BlockHash(bytes);
}

Status fill_scope(KvStore& store, const ScopeId& scope, std::uint64_t count) {
  constexpr std::uint64_t kBatch = 1024;
  const std::array<std::uint8_t, kValueBytes> value{};
  const std::array<ConstFragment, 1> payload = {ConstFragment(value)};
  std::vector<PutItem> items;
  for (std::uint64_t first = 0; first < count; first += kBatch) {
    items.clear();
    for (std::uint64_t i = first; i < std::min(count, first + kBatch); ++i) {
      const Key key{scope, {}, numbered_hash(i)};
      items.push_back({key, make_header(key, {}, kValueBytes), payload, false});
    }
    for (const Status& status : store.put(items)) {
      if (!status) return status;
    }
  }
  return {};
}

}  // namespace newmoon
