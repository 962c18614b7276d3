// Checks of option values that CLI11 lets pass: "" if the value is good, else what is
// wrong with it.
#pragma once

#include <string>

namespace newmoon {

// Of a std::uint64_t: CLI11 takes -1 for the largest there is, and "" for 0.
std::string check_uint64(const std::string& text);

// Of a file to be written at the end: what cannot be written is found out before the
// work, not after it. Leaves no file behind.
std::string check_output_path(const std::string& path);

}  // namespace newmoon
