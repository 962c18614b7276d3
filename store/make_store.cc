#include "store/make_store.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/ipc_path.h"
#include "store/circuit_breaker_store.h"
#include "store/ipc_store.h"
#include "store/memory_store.h"
#include "store/mooncake/config.h"
#include "store/mooncake/mooncake_store.h"

namespace newmoon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kMooncake = "mooncake://";

Result<std::unique_ptr<KvStore>> make_memory(const StoreOptions& options, Clock& clock,
                                             Executor& executor) {
  if (options.budget_bytes == 0) {
    return fail(Code::kBadRequest, "a budget of 0 bytes: the memory store needs room (" +
                                       std::string(options.budget_name) + ")");
  }
  const MemoryStoreOptions memory{.budget_bytes = options.budget_bytes,
                                  .budget_name = options.budget_name};
  return std::make_unique<MemoryStore>(memory, clock, executor);
}

// Whatever lies behind a network or a socket can fall silent, and must hold up nobody.
std::unique_ptr<KvStore> guard(std::unique_ptr<KvStore> store, const std::string& url,
                               const StoreOptions& options, Clock& clock) {
  if (!options.leave_alone) return store;
  auto guarded =
      std::make_unique<CircuitBreakerStore>(std::move(store), "the store at " + url, clock);
  guarded->start_probing();
  return guarded;
}

Result<std::unique_ptr<KvStore>> make_ipc(const std::string& url, const StoreOptions& options,
                                          Clock& clock) {
  Result<std::unique_ptr<IpcStore>> store =
      IpcStore::open(url, clock, {.timeout = options.timeout});
  if (!store) return std::unexpected(store.error());
  return guard(std::move(*store), url, options, clock);
}

Result<std::unique_ptr<KvStore>> make_mooncake(const std::string& url, const StoreOptions& options,
                                               Clock& clock) {
  const Result<MooncakeConfig> config = load_mooncake_config(url);
  if (!config) return std::unexpected(config.error());
  MooncakeOptions mooncake{.timeout = options.timeout};
  mooncake.recheck_delays = {config->put_start_discard_timeout * 4 / 3,
                             config->put_start_release_timeout * 21 / 20};
  Result<std::unique_ptr<MooncakeStore>> store = MooncakeStore::open(*config, clock, mooncake);
  if (!store) return std::unexpected(store.error());
  return guard(std::move(*store), url, options, clock);
}

std::unexpected<Error> unknown(const std::string& url) {
  return fail(Code::kBadRequest, "store '" + url +
                                     "' is unknown; use memory, ipc://PATH or "
                                     "mooncake://HOST:PORT");
}

Status check_ipc_path(const std::string& url) {
  const Result<std::string> path = parse_ipc_endpoint(url);
  if (!path) return std::unexpected(path.error());
  std::error_code error;
  const fs::path folder = fs::absolute(*path, error).parent_path();
  if (!fs::is_directory(folder, error)) {
    const std::string why = error ? error.message() : "not a folder";
    return fail(Code::kBadRequest, "store '" + url + "': " + folder.string() + ": " + why);
  }
  const fs::file_status file = fs::status(*path, error);
  if (!fs::exists(file) || fs::is_socket(file)) return {};
  return fail(Code::kBadRequest, "store '" + url + "': what is there is no socket");
}

}  // namespace

Status check_store_url(const std::string& url) {
  if (url == "memory") return {};
  if (url.starts_with(kIpc)) return check_ipc_path(url);
  if (!url.starts_with(kMooncake)) return unknown(url);
  const Result<MooncakeConfig> config = load_mooncake_config(url);
  return config ? Status() : std::unexpected(config.error());
}

Result<std::unique_ptr<KvStore>> make_store(const std::string& url, const StoreOptions& options,
                                            Clock& clock, Executor& executor) {
  if (url == "memory") return make_memory(options, clock, executor);
  if (url.starts_with(kIpc)) return make_ipc(url, options, clock);
  if (url.starts_with(kMooncake)) return make_mooncake(url, options, clock);
  return unknown(url);
}

}  // namespace newmoon
