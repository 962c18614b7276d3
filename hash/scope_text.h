// A scope in one line of text, which can be read back: how stores list scopes
// (KvStore::describe_scope()) and how commands show them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "hash/scope.h"

namespace newmoon {

// "namespace=run-7 model=Qwen/Qwen3-0.6B layout=block=16;dtype=bf16 weights=label:step-42".
// Weights are digest:<64 hex>, label:<text> or unique:<incarnation, 32 hex>:<epoch>.
// Blanks, control characters and '%' in a part are written %XX, so parts cannot be
// taken for each other.
std::string describe(const Scope& scope);

// Of any one of the three identities, as in describe() but not escaped.
std::string to_string(const WeightsIdentity& weights);

// The scope of a description. kBadRequest: not what describe() writes. A reader of a
// store compares Scope::id() with the id it was listed under: what differs was cut short,
// or is somebody else's text.
Result<Scope> parse_scope(std::string_view text);

}  // namespace newmoon
