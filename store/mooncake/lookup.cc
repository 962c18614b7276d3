#include "store/mooncake/lookup.h"

#include <array>
#include <functional>
#include <numeric>

#include "store/mooncake/error_code.h"

namespace newmoon {
namespace {

constexpr std::size_t kMasterMaps = 1024;

std::size_t map_of(std::string_view key) {
  return std::hash<std::string_view>{}(key) % kMasterMaps;
}

}  // namespace

Lookup::Lookup(const ScopeId& scope, std::span<const Shard> shards,
               std::span<const BlockHash> blocks)
    : blocks_(blocks.size()),
      shards_(shards.size()),
      keys_(blocks.size() * shards.size()),
      codes_(blocks.size() * shards.size()) {
  for (const BlockHash& block : blocks) {
    for (const Shard& shard : shards) keys_.add(scope, shard, block);
  }
  const std::size_t count = codes_.size();
  if (count <= kOneCallKeysMax) {
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), 0);
    texts_.assign(keys_.views().begin(), keys_.views().end());
    calls_ = {{0, count, {}}};
  } else {
    sort();
    calls_ = {{0, count / 2, {}}, {count / 2, count, {}}};
  }
}

// By counting: a lookup waits for it.
void Lookup::sort() {
  const std::span<const std::string_view> texts = keys_.views();
  std::vector<std::uint16_t> maps;
  maps.reserve(texts.size());
  std::array<std::uint32_t, kMasterMaps + 1> places{};
  for (const std::string_view text : texts) {
    maps.push_back(static_cast<std::uint16_t>(map_of(text)));
    ++places[maps.back() + 1];
  }
  std::partial_sum(places.begin(), places.end(), places.begin());
  order_.resize(texts.size());
  texts_.resize(texts.size());
  for (std::uint32_t i = 0; i < texts.size(); ++i) {
    const std::uint32_t place = places[maps[i]]++;
    order_[place] = i;
    texts_[place] = texts[i];
  }
}

void Lookup::ask(MooncakeClient& client, std::size_t call) {
  auto& [begin, end, status] = calls_[call];
  status = client.batch_is_exist(std::span(texts_).subspan(begin, end - begin),
                                 std::span(codes_).subspan(begin, end - begin));
}

Result<std::size_t> Lookup::hits() const {
  for (const Call& call : calls_) {
    if (!call.status) return std::unexpected(call.status.error());
  }
  std::size_t first = codes_.size();  // of keys_ that is not there
  std::int64_t code = 0;
  for (std::size_t i = 0; i < codes_.size(); ++i) {
    if (codes_[i] > 0 || order_[i] >= first) continue;
    first = order_[i];
    code = codes_[i];
  }
  if (code < 0) return std::unexpected(mooncake_error("lookup", code));
  return first / shards_;
}

}  // namespace newmoon
