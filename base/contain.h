// The border of a thread: whatever is thrown behind it (memory that ran out, a library's
// exception) ends there as an error, since past it, it would end the process (contract W7).
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace newmoon {

// What is being thrown: kBusy for memory that ran out (this work is dropped; the next
// may find room), kInternal for anything else. Only within a catch clause.
Error thrown_error() noexcept;

// Runs `work` and returns its Result, or a Status if it returns nothing; what it throws
// comes back as an error.
template <class Work>
auto contain(Work&& work) noexcept {
  using Returned = std::invoke_result_t<Work>;
  if constexpr (std::is_void_v<Returned>) {
    try {
      std::forward<Work>(work)();
      return Status();
    } catch (...) {
      return Status(std::unexpected(thrown_error()));
    }
  } else {
    try {
      return std::forward<Work>(work)();
    } catch (...) {
      return Returned(std::unexpected(thrown_error()));
    }
  }
}

// Counts errors and logs them, each doubling only: one that comes with every message must
// not fill the disk. Never throws. Any thread.
class ErrorCounter {
 public:
  // `component`: of the log lines; a literal.
  explicit ErrorCounter(std::string_view component) : component_(component) {}

  void add(const Error& error) noexcept;
  std::uint64_t count() const { return count_; }

 private:
  const std::string_view component_;
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace newmoon
