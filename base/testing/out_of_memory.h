// Memory that runs out, as far as base/testing/failing_new.h is in the test binary.
#pragma once

#include <atomic>
#include <cstddef>
#include <limits>

namespace newmoon::testing {

inline std::atomic<std::size_t> new_fails_from_bytes{std::numeric_limits<std::size_t>::max()};

// While it lives, allocations of so many bytes and more throw std::bad_alloc.
class NoMemoryFrom {
 public:
  explicit NoMemoryFrom(std::size_t bytes) { new_fails_from_bytes = bytes; }
  ~NoMemoryFrom() { new_fails_from_bytes = std::numeric_limits<std::size_t>::max(); }
  NoMemoryFrom(const NoMemoryFrom&) = delete;
  NoMemoryFrom& operator=(const NoMemoryFrom&) = delete;
};

}  // namespace newmoon::testing
