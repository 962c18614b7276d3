// The thread behind purges of a Mooncake store (store/mooncake/scope_gate.h).
#pragma once

#include "store/mooncake/client.h"
#include "store/mooncake/scope_gate.h"

namespace newmoon {

// Removes what the gate says is to be removed until it is stopped. Blocks.
void run_purges(MooncakeClient& client, ScopeGate& gate);

}  // namespace newmoon
