// SchedulerStack: a SchedulerRole with clock, randomness and the connection to its ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/zmq_transport.h"
#include "python/native/scheduler_role.h"

namespace newmoon {

// One thread. Start it after the last fork.
class SchedulerStack {
 public:
  // `endpoints`: of the ranks' sockets, in rank order; they may be bound later.
  // kBadRequest: an endpoint that is no ipc://PATH.
  static Result<std::unique_ptr<SchedulerStack>> start(SchedulerRole::Options options,
                                                       std::vector<std::string> endpoints);

  SchedulerRole& role() { return *role_; }
  Time after(Duration timeout) const { return clock_.now() + timeout; }

 private:
  SchedulerStack() = default;

  SystemClock clock_;
  SystemRandom random_;
  std::unique_ptr<ZmqClientTransport> transport_;
  std::unique_ptr<SchedulerRole> role_;
};

}  // namespace newmoon
