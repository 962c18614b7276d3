// What Mooncake's master tells over plain TCP and HTTP, without the wheel: whether it is
// there, its keys and its figures. Blocking, each call within its deadline. Any thread
// may call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace newmoon {

class MasterHttp {
 public:
  // `metrics_address`: HOST:PORT. `clock`: SystemClock, must outlive this.
  MasterHttp(std::string metrics_address, Clock& clock)
      : address_(std::move(metrics_address)), clock_(clock) {}

  // Of the whole store, all programs' together.
  struct Figures {
    std::uint64_t keys = 0;   // those being written too
    std::uint64_t bytes = 0;  // likewise
    std::uint64_t capacity_bytes = 0;
    std::uint64_t evicted_keys = 0;
  };
  Result<Figures> figures(Time deadline) const;
  // Every readable key that is wanted, in no order.
  Result<std::vector<std::string>> keys(
      Time deadline, const std::function<bool(std::string_view key)>& wanted = {}) const;

  // kUnavailable, kDeadline: no answer; the message names the address and the option
  // metrics_port.
  Result<std::string> get(const std::string& path, Time deadline) const;

 private:
  const std::string address_;
  Clock& clock_;
};

// Whether something listens at HOST:PORT.
Status probe_tcp(const std::string& address, Clock& clock, Time deadline);

}  // namespace newmoon
