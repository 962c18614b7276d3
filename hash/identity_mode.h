// What names the weights in an engine's scopes.
#pragma once

#include <cstdint>

namespace newmoon {

enum class IdentityMode : std::uint8_t {
  kUnique,        // nothing: every update starts cold
  kDigest,        // the digest of the tensors in memory
  kTrustedLabel,  // weight_version, by the user's word
};

}  // namespace newmoon
