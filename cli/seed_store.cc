#include "cli/seed_store.h"

#include <utility>

#include "store/make_store.h"
#include "store/mooncake/config.h"
#include "store/mooncake/master_http.h"

namespace newmoon {
namespace {

constexpr std::uint64_t kBudgetBytes = std::uint64_t{64} << 20;
// What a process that joins a store lends to it, and its buffer: there is little to keep.
constexpr const char* kSmall = "&global_segment_size=64MB&local_buffer_size=64MB";

// Other programs' keys count: they would go too.
Status check_empty(const std::string& url, Clock& clock) {
  const Result<MooncakeConfig> config = load_mooncake_config(url);
  if (!config) return std::unexpected(config.error());
  const MasterHttp master(config->metrics_address(), clock);
  const auto figures = master.figures(clock.now() + std::chrono::seconds(5));
  if (!figures) return std::unexpected(figures.error());
  if (figures->keys == 0) return {};
  return fail(Code::kBadRequest, "the store at " + url + " holds " + std::to_string(figures->keys) +
                                     " keys, and the walk empties it: give it one of its own "
                                     "(--store mooncake starts one)");
}

}  // namespace

Result<std::unique_ptr<SeedStore>> SeedStore::open(const std::string& store) {
  std::unique_ptr<SeedStore> opened(new SeedStore());
  if (store != "memory" && store != "mooncake" && !store.starts_with("mooncake://")) {
    return fail(Code::kBadRequest, "--store '" + store +
                                       "' is unknown here; use memory, mooncake or "
                                       "mooncake://HOST:PORT");
  }
  Result<StoreAddress> found = find_store(store, kSmall, opened->clock_);
  if (!found) return std::unexpected(found.error());
  opened->address_ = std::move(*found);
  const std::string& url = opened->address_.url;
  Result<std::unique_ptr<KvStore>> made =
      make_store(url, {.budget_bytes = kBudgetBytes}, opened->clock_, opened->freeing_);
  if (!made) return std::unexpected(made.error());
  opened->store_ = std::move(*made);
  if (url != "memory") {
    if (const Status empty = check_empty(url, opened->clock_); !empty) {
      return std::unexpected(empty.error());
    }
  }
  return opened;
}

Status SeedStore::empty() {
  const Result<std::uint64_t> removed = store_->remove_all();
  if (!removed) return std::unexpected(removed.error());
  return {};
}

}  // namespace newmoon
