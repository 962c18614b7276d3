// A KvStore of a map, with a hook before and after each put and get, where a test
// makes something happen in the middle of it, and values that a test can spoil.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/kv_store.h"
#include "store/other_length.h"

namespace newmoon::testing {

class FakeStore final : public KvStore {
 public:
  struct Value {
    ValueHeader header;
    Bytes payload;
  };
  std::map<std::string, Value> values;  // by Key::to_string()
  std::function<void()> before_put = [] {};
  std::function<void()> before_get = [] {};
  std::function<void()> after_get = [] {};
  std::optional<Error> put_error;  // for every item, or that of one block only
  std::optional<BlockHash> put_error_block;
  std::optional<Error> purge_error;
  std::optional<Error> stats_error;
  std::vector<ScopeUsage> usages;     // of list_scopes(); values do not count in it
  std::optional<Error> remove_error;  // of remove_all()
  std::uint64_t left_behind = 0;      // blocks that remove_all() does not see
  bool atomic_reads = false;
  std::vector<std::size_t> put_sizes;  // items of each call
  std::size_t put_front_room = 0;      // of the last item

  std::vector<Status> put(std::span<const PutItem> items) override {
    before_put();
    put_sizes.push_back(items.size());
    put_front_room = items.back().front_room;
    std::vector<Status> statuses;
    for (const PutItem& item : items) statuses.push_back(put_one(item));
    return statuses;
  }

  std::vector<Result<GetValue>> get(std::span<const GetItem> items) override {
    before_get();
    std::vector<Result<GetValue>> results;
    for (const GetItem& item : items) results.push_back(get_one(item));
    after_get();
    return results;
  }

  Result<std::size_t> hit_prefix(const ScopeId& scope, std::span<const Shard> shards,
                                 std::span<const BlockHash> blocks) override {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      for (const Shard& shard : shards) {
        if (!values.contains(Key{scope, shard, blocks[i]}.to_string())) return i;
      }
    }
    return blocks.size();
  }

  Status remove(const Key& key) override {
    values.erase(key.to_string());
    return {};
  }
  Status purge_scope(const ScopeId& scope, bool for_good) override {
    if (purge_error) return std::unexpected(*purge_error);
    if (for_good) purged_for_good_.insert(scope);
    std::erase_if(values,
                  [&](const auto& value) { return value.first.starts_with(key_prefix(scope)); });
    return {};
  }
  void describe_scope(const ScopeId&, const std::string&) override {}
  Status hold_scope(const ScopeId&, const std::string&, Duration) override { return {}; }
  Result<std::uint64_t> remove_all() override {
    if (remove_error) return std::unexpected(*remove_error);
    const std::uint64_t removed = values.size();
    values.clear();
    return removed;
  }
  Status ping() override { return {}; }
  Result<StoreStats> stats() override {
    if (stats_error) return std::unexpected(*stats_error);
    StoreStats stats;
    stats.blocks = values.size() + left_behind;
    return stats;
  }
  Result<std::vector<ScopeUsage>> list_scopes() override { return usages; }
  bool reads_are_atomic() const override { return atomic_reads; }

 private:
  Status put_one(const PutItem& item) {
    const bool fails = put_error && (!put_error_block || *put_error_block == item.key.block);
    if (fails) return std::unexpected(*put_error);
    if (purged_for_good_.contains(item.key.scope)) return fail(Code::kFenced, "purged for good");
    Value value{item.header, Bytes(total_bytes(item.payload))};
    const std::uint64_t checksum = gather(item.payload, value.payload, item.checksum);
    if (item.checksum) set_checksum(value.header, checksum);
    values.emplace(item.key.to_string(), std::move(value));  // the first put wins
    return {};
  }
  Result<GetValue> get_one(const GetItem& item) {
    const auto found = values.find(item.key.to_string());
    if (found == values.end()) return fail(Code::kMiss, item.key.to_string());
    const Value& value = found->second;
    if (value.payload.size() != total_bytes(item.payload)) {
      return other_length(item.key, value.payload.size(), total_bytes(item.payload));
    }
    return GetValue{value.header, scatter(value.payload, item.payload, item.checksum)};
  }

  std::set<ScopeId> purged_for_good_;
};

}  // namespace newmoon::testing
