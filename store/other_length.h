// What every backend says of a value that is there whole and of another length than was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "hash/key.h"

namespace newmoon {

// Payload bytes, both.
inline std::unexpected<Error> other_length(const Key& key, std::uint64_t stored,
                                           std::uint64_t asked) {
  return fail(Code::kBadRequest, "get: the value of " + key.to_string() + " has " +
                                     std::to_string(stored) + " bytes, and " +
                                     std::to_string(asked) + " were asked for");
}

// Of a get that failed in any other way: kBadRequest is kept for the above, behind which a reader
// who knows better may take the value for damaged, and remove it.
inline std::unexpected<Error> failed_get(Error error) {
  if (error.code == Code::kBadRequest) error.code = Code::kInternal;
  return std::unexpected(std::move(error));
}

}  // namespace newmoon
