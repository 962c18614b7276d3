// Time, given by constructor so that a simulator can own it.
#pragma once

#include <chrono>
#include <cstdint>

namespace newmoon {

using Duration = std::chrono::nanoseconds;
// Monotonic, since an arbitrary start. Comparable only within one Clock.
using Time = std::chrono::nanoseconds;

inline double to_ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }
inline double to_us(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

// Any thread may call.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
  // Returns at or after `deadline`; at once if it has passed.
  virtual void sleep_until(Time deadline) = 0;
};

// std::chrono::steady_clock.
class SystemClock final : public Clock {
 public:
  Time now() const override;
  void sleep_until(Time deadline) override;
};

// Seconds since 1970 by this machine's clock, which may jump: only for what processes on
// several machines must compare.
std::int64_t unix_time_s();

}  // namespace newmoon
