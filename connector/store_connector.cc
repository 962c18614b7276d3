#include "connector/store_connector.h"

#include <cstdlib>
#include <string_view>

#include "base/log.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "store_connector";

}  // namespace

StoreConnector StoreConnector::for_scheduler(StoreScheduler& scheduler) {
  StoreConnector connector;
  connector.scheduler_ = &scheduler;
  return connector;
}

StoreConnector StoreConnector::for_worker(StoreWorker& worker) {
  StoreConnector connector;
  connector.worker_ = &worker;
  return connector;
}

ConnectorRole StoreConnector::role() const {
  return scheduler_ != nullptr ? ConnectorRole::kScheduler : ConnectorRole::kWorker;
}

StoreScheduler& StoreConnector::scheduler() {
  if (scheduler_ == nullptr) std::abort();
  return *scheduler_;
}

StoreWorker& StoreConnector::worker() {
  if (worker_ == nullptr) std::abort();
  return *worker_;
}

std::optional<ResetAnswer> StoreConnector::reset_cache(Time deadline) {
  if (scheduler_ == nullptr) {
    log(LogLevel::kDebug, kLog, "reset_cache: worker role, nothing to do");
    return std::nullopt;
  }
  log(LogLevel::kDebug, kLog, "reset_cache: scheduler role");
  scheduler_->forget();
  return scheduler_->reset_store(deadline);
}

}  // namespace newmoon
