// By which of its addresses other machines know this one.
#pragma once

#include <string>

#include "base/result.h"

namespace newmoon {

// The address from which this machine would send to `host` (a name, an IPv4 address or an
// IPv6 one in brackets): what upstream's get_ip() does, towards the peer that matters.
// Sends nothing; resolving a name may block. kUnavailable: no address, or no way there.
Result<std::string> local_address_towards(const std::string& host);

}  // namespace newmoon
