// Keys beside those of values (hash/key.h), by which processes on one Mooncake store tell
// each other about scopes. Grammar: docs/formats.md, "Records in Mooncake".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "hash/scope.h"

namespace newmoon {

// Of a scope's description, which is the value: "nm1d:<scope id, 32 hex>".
std::string description_key(const ScopeId& scope);

// That somebody holds a scope; the key says it all and the value is one byte:
// "nm1h:<scope id, 32 hex>:<unix minute, decimal>:<holder, hex>".
struct HoldKey {
  ScopeId scope;
  std::int64_t until_minute = 0;  // since 1970; the hold ended before it
  std::string holder;

  std::string to_string() const;
};
// nullopt: another key.
std::optional<HoldKey> parse_hold_key(std::string_view text);

// Whether it is one of the keys here.
bool is_record_key(std::string_view text);

}  // namespace newmoon
