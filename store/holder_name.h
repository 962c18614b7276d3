// How an engine is called as the holder of a scope (KvStore::hold_scope()).
#pragma once

#include <string>

#include "hash/scope.h"

namespace newmoon {

// `engine id@host:pid:incarnation`: where to look for the process, and what no other engine
// has. Any thread.
std::string holder_name(const std::string& engine_id, const Incarnation& incarnation);

}  // namespace newmoon
