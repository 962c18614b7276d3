// The thread behind purges of a Mooncake store (store/mooncake/scope_gate.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "store/mooncake/client.h"
#include "store/mooncake/scope_gate.h"

namespace newmoon {

// Lists those of the store's keys that are wanted. None: the store has so few keys that a
// pattern does no harm, or they cannot be listed.
using WantedKey = std::function<bool(std::string_view key)>;
using ListManyKeys = std::function<std::optional<std::vector<std::string>>(const WantedKey&)>;

// Removes what the gate says is to be removed until it is stopped. Blocks. `clock`:
// SystemClock.
//
// While the master matches a pattern with its keys, 1.5 ms per thousand, the thread that
// does answers nobody: half of all clients wait on a machine of two cores. So where there
// are many keys they are listed, over its HTTP, and removed in small batches with pauses.
void run_purges(MooncakeClient& client, ScopeGate& gate, const ListManyKeys& list_many,
                Clock& clock);

}  // namespace newmoon
