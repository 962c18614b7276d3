#include "cli/option_checks.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/ipc_path.h"

namespace newmoon {

std::string check_uint64(const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && parsed == end) return "";
  return "'" + text + "' is not a whole number from 0 to 2^64-1";
}

CLI::Validator seconds_in(double low, double high) {
  char range[64];
  std::snprintf(range, sizeof range, "%g to %g", low, high);
  const auto check = [low, high, range = std::string(range)](const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, value);
    const bool good = error == std::errc() && parsed == end && value >= low && value <= high;
    return good ? std::string() : "'" + text + "' is not a number of seconds from " + range;
  };
  return {check, range};
}

Result<std::vector<std::uint64_t>> parse_number_list(const std::string& text, std::uint64_t most) {
  std::vector<std::uint64_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::uint64_t number = 0;
    const auto [parsed, error] = std::from_chars(at, end, number);
    const bool is_item = error == std::errc() && (parsed == end || *parsed == ',');
    if (!is_item || number < 1 || number > most) {
      return fail(
          Code::kBadRequest,
          "'" + text + "' is not a list such as 1,16 of numbers from 1 to " + std::to_string(most));
    }
    numbers.push_back(number);
    if (parsed == end) return numbers;
    at = parsed + 1;
  }
}

std::string check_output_path(const std::string& path) {
  const bool existed = access(path.c_str(), F_OK) == 0;
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!file) return "cannot write '" + path + "': " + std::strerror(errno);
  if (!existed) unlink(path.c_str());
  return "";
}

}  // namespace newmoon
