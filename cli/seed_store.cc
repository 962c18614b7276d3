#include "cli/seed_store.h"

#include <utility>

#include "store/make_store.h"

namespace newmoon {
namespace {

constexpr std::uint64_t kBudgetBytes = std::uint64_t{64} << 20;
// What a process that joins a store lends to it, and its buffer: there is little to keep.
constexpr const char* kSmall = "&global_segment_size=64MB&local_buffer_size=64MB";

Status check_empty(const std::string& url, KvStore& store) {
  const Result<StoreStats> stats = store.stats();
  if (!stats) return std::unexpected(stats.error());
  if (stats->blocks == 0) return {};
  return fail(Code::kBadRequest, "the store at " + url + " holds " + std::to_string(stats->blocks) +
                                     " values, and the walk empties it: give it one of its own "
                                     "(--store mooncake starts one)");
}

}  // namespace

Result<std::unique_ptr<SeedStore>> SeedStore::open(const std::string& store) {
  std::unique_ptr<SeedStore> opened(new SeedStore());
  std::string url = store;
  if (store == "mooncake") {
    Result<MooncakeMaster> master = MooncakeMaster::start(opened->clock_);
    if (!master) return std::unexpected(master.error());
    opened->master_.emplace(std::move(*master));
    url = opened->master_->url() + kSmall;
  } else if (store != "memory" && !store.starts_with("mooncake://")) {
    return fail(Code::kBadRequest, "--store '" + store +
                                       "' is unknown here; use memory, mooncake or "
                                       "mooncake://HOST:PORT");
  }
  Result<std::unique_ptr<KvStore>> made =
      make_store(url, {.budget_bytes = kBudgetBytes}, opened->clock_, opened->freeing_);
  if (!made) return std::unexpected(made.error());
  opened->store_ = std::move(*made);
  if (const Status empty = check_empty(url, *opened->store_); !empty) {
    return std::unexpected(empty.error());
  }
  return opened;
}

Status SeedStore::empty() {
  const Result<std::uint64_t> removed = store_->remove_all();
  if (!removed) return std::unexpected(removed.error());
  return {};
}

}  // namespace newmoon
