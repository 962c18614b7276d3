// The processes of a rollout: engines, and the store that they share.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/temp_folder.h"
#include "cli/child_process.h"
#include "cli/rollout.h"
#include "cli/store_address.h"

namespace newmoon {

// Owns the engine processes and, for --store memory or mooncake, the store's server: when
// that ends, so does every call to an engine, with kUnavailable. An
// engine is used by one thread at a time; different engines may be used by different threads.
class Fleet {
 public:
  // All are up and ready. `options` may go.
  static Result<Fleet> start(const RolloutOptions& options);
  Fleet(Fleet&&) = default;
  Fleet& operator=(Fleet&&) = delete;
  ~Fleet();  // the engines first, then their store

  std::size_t size() const { return engines_.size(); }
  ChildProcess& engine(std::size_t i) { return engines_[i]; }
  // The same request to every engine at once.
  Status send_all(const nlohmann::json& request);
  // One reply of each engine, in order.
  Result<std::vector<nlohmann::json>> receive_all(Duration timeout);

 private:
  Fleet() = default;
  Status start_store(const RolloutOptions& options);
  Status start_store_server(const RolloutOptions& options);
  // So that a call to the engine ends when a store of our own does.
  Status depend_on_store(ChildProcess& engine) const;

  std::unique_ptr<SystemClock> clock_ = std::make_unique<SystemClock>();  // of a master
  StoreAddress store_;
  std::optional<TempFolder> folder_;  // of the store server's socket
  std::unique_ptr<ChildProcess> store_server_;
  std::vector<ChildProcess> engines_;
};

}  // namespace newmoon
