#include "base/clock.h"

#include <thread>

namespace newmoon {

Time SystemClock::now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

void SystemClock::sleep_until(Time deadline) {
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(deadline)));
}

std::int64_t unix_time_s() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since_1970).count();
}

}  // namespace newmoon
