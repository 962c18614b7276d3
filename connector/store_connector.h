// StoreConnector: the facade over both roles, with the entry points an engine calls
// (vLLM's KVConnectorBase_V1, upstream's MooncakeStoreConnector).
#pragma once

#include <optional>

#include "connector/store_scheduler.h"
#include "connector/store_worker.h"

namespace newmoon {

enum class ConnectorRole { kScheduler, kWorker };

// Borrows what it is given. The scheduler role belongs to the engine's loop thread,
// the worker role to the rank's forward thread.
class StoreConnector {
 public:
  static StoreConnector for_scheduler(StoreScheduler& scheduler);
  static StoreConnector for_worker(StoreWorker& worker);

  ConnectorRole role() const;
  StoreScheduler& scheduler();  // REQUIRES: role() == kScheduler
  StoreWorker& worker();        // REQUIRES: role() == kWorker

  // Scheduler role: forgets local state and delegates to reset_store(). Worker role:
  // nullopt; workers are reset through the admin channel.
  std::optional<ResetAnswer> reset_cache(Time deadline);

 private:
  StoreConnector() = default;

  StoreScheduler* scheduler_ = nullptr;
  StoreWorker* worker_ = nullptr;
};

}  // namespace newmoon
