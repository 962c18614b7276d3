// The part of MooncakeStore that is about scopes and the store as a whole.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/log.h"
#include "store/mooncake/error_code.h"
#include "store/mooncake/mooncake_store.h"
#include "store/mooncake/record_key.h"
#include "store/scope_holds.h"

namespace newmoon {
namespace {

constexpr std::size_t kDescriptionBytesMax = 1024;
constexpr std::uint64_t kCountedKeysMax = 20'000;
constexpr Duration kCountPause = std::chrono::milliseconds(10);

std::int64_t minutes_up(std::int64_t seconds) { return (seconds + 59) / 60; }

}  // namespace

// What the master's keys say, other programs' left out.
struct MooncakeStore::Scan {
  struct ShardUsage {
    std::uint64_t values = 0;
    std::string example;  // one of the keys
    std::uint64_t value_bytes = 0;
  };
  struct ScopeRecord {
    std::map<Shard, ShardUsage> shards;
    std::set<std::string> holders;
  };
  std::map<ScopeId, ScopeRecord> scopes;

  void add(const std::string& text, std::int64_t now_s) {
    if (const Result<Key> key = parse_key(text)) {
      ShardUsage& usage = scopes[key->scope].shards[key->shard];
      if (usage.values++ == 0) usage.example = text;
    } else if (std::optional<HoldKey> hold = parse_hold_key(text)) {
      if (hold->until_minute * 60 > now_s) {
        scopes[hold->scope].holders.insert(std::move(hold->holder));
      }
    }
  }
};

Status MooncakeStore::remove_key(const std::string& key, Time deadline) {
  const Result<std::int64_t> removed = call("remove", deadline, [key](Session& session) {
    const std::string_view text = key;
    std::int64_t code = 0;
    const Status done = session.client->batch_remove({&text, 1}, {&code, 1});
    if (!done) return Result<std::int64_t>(std::unexpected(done.error()));
    const bool unreadable = code == kMooncakeNotFound || code == kMooncakeBeingWritten;
    return Result<std::int64_t>(unreadable ? 0 : code);
  });
  if (!removed) return std::unexpected(removed.error());
  return {};
}

Status MooncakeStore::remove(const Key& key) { return remove_key(key.to_string(), deadline()); }

Status MooncakeStore::purge_scope(const ScopeId& scope, bool for_good) {
  gate_->purge(scope, for_good);
  return {};
}

// On a worker.
Result<std::int64_t> MooncakeStore::put_record(Session& session, const std::string& key,
                                               std::string_view value, Time deadline) {
  const auto region = session.arena->take(value.size(), deadline);
  if (!region) return std::unexpected(region.error());
  std::memcpy((*region)->data(), value.data(), value.size());
  return session.client->upsert_from(key, {(*region)->data(), value.size()});
}

std::string MooncakeStore::Session::description(const ScopeId& scope) {
  MutexLock lock(mutex);
  const std::string* const text = descriptions.find(scope);
  return text == nullptr ? "" : *text;
}

void MooncakeStore::describe_scope(const ScopeId& scope, const std::string& description) {
  {
    MutexLock lock(session_->mutex);
    session_->descriptions.set(scope, description.substr(0, kDescriptionBytesMax));
  }
  calls_.start([session = session_, scope, deadline = deadline()] {
    // Looked at once more after the write, which may have come after that of a later call.
    std::string written;
    for (std::string latest = session->description(scope); !latest.empty() && latest != written;
         latest = session->description(scope)) {
      const auto code = put_record(*session, description_key(scope), latest, deadline);
      if (!code || *code < 0) {
        const Error error = code ? mooncake_error("description", *code) : code.error();
        log(LogLevel::kInfo, "mooncake", "a scope's description is not stored: " + error.message);
        return;
      }
      written = std::move(latest);
    }
  });
}

Status MooncakeStore::hold_scope(const ScopeId& scope, const std::string& holder, Duration lease) {
  if (holder.empty()) return fail(Code::kBadRequest, "hold: the holder has no name");
  const Time deadline = this->deadline();
  const std::string name = holder.substr(0, kHolderBytesMax);
  std::string key;
  if (lease > Duration::zero()) {
    const std::int64_t lease_s = std::chrono::ceil<std::chrono::seconds>(lease).count();
    const std::int64_t until = minutes_up(options_.unix_time_s() + lease_s);
    key = HoldKey{.scope = scope, .until_minute = until, .holder = name}.to_string();
    const auto put = call("hold", deadline, [key, deadline](Session& session) {
      return put_record(session, key, "1", deadline);
    });
    if (!put) return std::unexpected(put.error());
  }
  std::string before;
  {
    MutexLock lock(mutex_);
    before = std::exchange(holds_[{scope, name}], key);
    if (key.empty()) holds_.erase({scope, name});
  }
  if (before.empty() || before == key) return {};
  return remove_key(before, deadline);
}

// Keys that are no values but ours; 0 where there are too many keys for them to matter.
Result<std::uint64_t> MooncakeStore::count_records(Time deadline) {
  const Result<MasterHttp::Figures> figures = http_.figures(deadline);
  if (!figures) return std::unexpected(figures.error());
  if (figures->keys > kCountedKeysMax) return 0;
  const Result<std::vector<std::string>> keys = http_.keys(deadline);
  if (!keys) return std::unexpected(keys.error());
  return static_cast<std::uint64_t>(std::ranges::count_if(*keys, is_record_key));
}

Result<std::uint64_t> MooncakeStore::remove_all() {
  const Time deadline = this->deadline();
  const Result<std::uint64_t> records = count_records(deadline);
  if (!records) return std::unexpected(records.error());
  std::uint64_t removed = 0;
  while (true) {
    const Result<std::int64_t> count =
        call("remove_all", deadline, [](Session& session) { return session.client->remove_all(); });
    if (!count) return std::unexpected(count.error());
    removed += static_cast<std::uint64_t>(*count);
    const Result<MasterHttp::Figures> figures = http_.figures(deadline);
    if (!figures) return std::unexpected(figures.error());
    if (figures->keys == 0) return removed - std::min(removed, *records);
    if (clock_.now() + kCountPause >= deadline) {
      return fail(Code::kBusy, "mooncake remove_all: " + std::to_string(figures->keys) +
                                   " keys are left, being written or newly put");
    }
    clock_.sleep_until(clock_.now() + kCountPause);
  }
}

Result<MooncakeStore::Scan> MooncakeStore::scan(Time deadline) {
  const Result<std::vector<std::string>> keys = http_.keys(deadline);
  if (!keys) return std::unexpected(keys.error());
  Scan scan;
  const std::int64_t now_s = options_.unix_time_s();
  for (const std::string& key : *keys) scan.add(key, now_s);
  if (Status measured = measure(scan, deadline); !measured) {
    return std::unexpected(measured.error());
  }
  return scan;
}

// A value that is gone meanwhile counts no bytes.
Status MooncakeStore::measure(Scan& scan, Time deadline) {
  for (auto& [scope, record] : scan.scopes) {
    for (auto& [shard, usage] : record.shards) {
      const auto size = call("size", deadline, [key = usage.example](Session& session) {
        return session.client->get_size(key);
      });
      if (!size && size.error().code != Code::kMiss) return std::unexpected(size.error());
      usage.value_bytes = static_cast<std::uint64_t>(size.value_or(0));
    }
  }
  return {};
}

Result<StoreStats> MooncakeStore::stats() {
  const Time deadline = this->deadline();
  const Result<MasterHttp::Figures> figures = http_.figures(deadline);
  if (!figures) return std::unexpected(figures.error());
  StoreStats stats;
  stats.blocks = figures->keys;
  stats.bytes = figures->bytes;
  stats.budget_bytes = figures->capacity_bytes;
  stats.evicted_blocks = figures->evicted_keys;
  stats.refused_late_puts = refused_late_puts_;
  const ScopeGate::Counts purges = gate_->counts();
  stats.unfinished_purges = purges.pending;
  stats.owed_rechecks = purges.rechecks;
  stats.recheck_left_s = static_cast<std::uint64_t>(
      std::chrono::ceil<std::chrono::seconds>(purges.recheck_left).count());
  if (figures->keys > kCountedKeysMax) return stats;
  const Result<Scan> scan = this->scan(deadline);
  if (!scan) return std::unexpected(scan.error());
  stats.blocks = stats.bytes = 0;
  for (const auto& [scope, record] : scan->scopes) {
    const bool hidden = gate_->is_hidden(scope);
    for (const auto& [shard, usage] : record.shards) {
      const std::uint64_t bytes = usage.values * usage.value_bytes;
      stats.blocks += hidden ? 0 : usage.values;
      (hidden ? stats.bytes_to_free : stats.bytes) += bytes;
    }
  }
  return stats;
}

std::string MooncakeStore::description_of(const ScopeId& scope, Time deadline) {
  if (std::string ours = session_->description(scope); !ours.empty()) return ours;
  auto region = session_->arena->take(kDescriptionBytesMax, deadline);
  if (!region) return "";
  const std::shared_ptr<StagingArena::Region> keep = std::move(*region);
  const auto bytes =
      call("description", deadline, [key = description_key(scope), keep](Session& session) {
        const std::string_view text = key;
        const MooncakeBuffer buffer{keep->data(), kDescriptionBytesMax};
        std::int64_t code = 0;
        const Status got = session.client->batch_get_into({&text, 1}, {&buffer, 1}, {&code, 1});
        if (!got) return Result<std::int64_t>(std::unexpected(got.error()));
        return Result<std::int64_t>(code);
      });
  if (!bytes) return "";
  return {reinterpret_cast<const char*>(keep->data()), static_cast<std::size_t>(*bytes)};
}

Result<std::vector<ScopeUsage>> MooncakeStore::list_scopes() {
  const Time deadline = this->deadline();
  const Result<Scan> scan = this->scan(deadline);
  if (!scan) return std::unexpected(scan.error());
  std::vector<ScopeUsage> usages;
  for (const auto& [scope, record] : scan->scopes) {
    ScopeUsage usage;
    usage.scope = scope;
    if (!gate_->is_hidden(scope)) {
      for (const auto& [shard, values] : record.shards) {
        usage.blocks += values.values;
        usage.bytes += values.values * values.value_bytes;
      }
    }
    usage.holders.assign(record.holders.begin(), record.holders.end());
    if (usage.blocks == 0 && usage.holders.empty()) continue;
    usage.description = description_of(scope, deadline);
    usages.push_back(std::move(usage));
  }
  return usages;
}

}  // namespace newmoon
