// A store by its URL, as `--store` has it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/executor.h"
#include "base/result.h"
#include "store/kv_store.h"

namespace newmoon {

struct StoreOptions {
  std::uint64_t budget_bytes = 0;                  // memory: required
  std::string_view budget_name = "--store-bytes";  // memory: what sets it, for messages
  Duration timeout = std::chrono::seconds(1);      // ipc, mooncake: of a call
  // ipc, mooncake: behind a CircuitBreakerStore that probes. Not for a command that asks
  // once: its errors are the store's own, and it says them itself.
  bool leave_alone = true;
};

// Opens nothing. kBadRequest: a URL that make_store() refuses, or an ipc://PATH at which no
// store can be: its folder is not there, or it is no socket.
Status check_store_url(const std::string& url);

// "memory": a MemoryStore in this process; "ipc://PATH": one that
// `newmoon store-server` shares; "mooncake://HOST:PORT[?...]" (store/mooncake/config.h): a
// MooncakeStore, joined. (No external tier, "none", is the caller's to see.) `clock` and `executor`
// (frees memory behind; used by "memory" only) must outlive the store and the executor's queued
// tasks. kBadRequest: another URL, or a budget of 0 bytes for "memory". kUnavailable: no Mooncake
// master there, or nothing to reach it with.
Result<std::unique_ptr<KvStore>> make_store(const std::string& url, const StoreOptions& options,
                                            Clock& clock, Executor& executor);

}  // namespace newmoon
