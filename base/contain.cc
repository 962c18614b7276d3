#include "base/contain.h"

#include <bit>
#include <exception>
#include <new>
#include <string>

#include "base/log.h"

namespace newmoon {

Error thrown_error() noexcept {
  // No text here is longer than what a string holds without allocating, but that of an
  // exception, which is told only if there is memory for it.
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {Code::kBusy, "out of memory"};
  } catch (const std::exception& error) {
    try {
      return {Code::kInternal, std::string("thrown: ") + error.what()};
    } catch (...) {
      return {Code::kInternal, "exception"};
    }
  } catch (...) {
    return {Code::kInternal, "exception"};
  }
}

void ErrorCounter::add(const Error& error) noexcept {
  const std::uint64_t count = ++count_;
  if (!std::has_single_bit(count)) return;
  try {
    log(LogLevel::kError, component_, to_string(error) + " (" + std::to_string(count) + " so far)");
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the line, but it is counted
  }
}

}  // namespace newmoon
