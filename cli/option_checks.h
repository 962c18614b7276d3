// Checks of option values that CLI11 lets pass: "" if the value is good, else what is
// wrong with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace CLI {
class Validator;
}

namespace newmoon {

// Of a std::uint64_t: CLI11 takes -1 for the largest there is, and "" for 0.
std::string check_uint64(const std::string& text);

// A number of seconds in low..high, which CLI11 shows with six places each.
CLI::Validator seconds_in(double low, double high);

// A list of whole numbers between commas, each in 1..most: CLI11 skips empty ones.
Result<std::vector<std::uint64_t>> parse_number_list(const std::string& text, std::uint64_t most);

// Of a file to be written at the end: what cannot be written is found out before the
// work, not after it. Leaves no file behind.
std::string check_output_path(const std::string& path);

}  // namespace newmoon
