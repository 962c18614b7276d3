// Memory that runs out, as far as base/testing/failing_new.h is in the test binary.
#pragma once

#include <atomic>
#include <cstddef>
#include <limits>

namespace newmoon::testing {

inline constexpr std::size_t kNewNeverFails = std::numeric_limits<std::size_t>::max();
inline std::atomic<std::size_t> new_fails_from_bytes{kNewNeverFails};
inline thread_local std::size_t new_fails_after = kNewNeverFails;  // so many that succeed

// Asked by operator new.
inline bool new_fails(std::size_t bytes) {
  if (bytes >= new_fails_from_bytes) return true;
  return new_fails_after != kNewNeverFails && new_fails_after-- == 0;  // once: then it never fails
}

// While it lives, allocations of so many bytes and more throw std::bad_alloc.
class NoMemoryFrom {
 public:
  explicit NoMemoryFrom(std::size_t bytes) { new_fails_from_bytes = bytes; }
  ~NoMemoryFrom() { new_fails_from_bytes = kNewNeverFails; }
  NoMemoryFrom(const NoMemoryFrom&) = delete;
  NoMemoryFrom& operator=(const NoMemoryFrom&) = delete;
};

// While it lives, one allocation of this thread throws std::bad_alloc: that after `count`
// others. With each count in turn, a test breaks off what it tests wherever it can break off.
class NoMemoryAfter {
 public:
  explicit NoMemoryAfter(std::size_t count) { new_fails_after = count; }
  ~NoMemoryAfter() { new_fails_after = kNewNeverFails; }
  NoMemoryAfter(const NoMemoryAfter&) = delete;
  NoMemoryAfter& operator=(const NoMemoryAfter&) = delete;

  // False: what was tested allocates no more than `count` times.
  bool has_failed() const { return new_fails_after == kNewNeverFails; }
};

}  // namespace newmoon::testing
