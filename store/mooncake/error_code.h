// Mooncake's error codes (types.h of Mooncake 0.3.13) and what they mean to us: the one
// table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace newmoon {

inline constexpr std::int64_t kMooncakeFull = -200;
inline constexpr std::int64_t kMooncakeInvalidParams = -600;
inline constexpr std::int64_t kMooncakeBeingWritten = -703;
inline constexpr std::int64_t kMooncakeNotFound = -704;

// The error for a negative code. `what` stands in front: "put of nm1:...".
Error mooncake_error(std::string_view what, std::int64_t code);

}  // namespace newmoon
