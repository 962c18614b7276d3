// A foreign peer of a rank's LookupKeyServer: one question over a connection of its
// own, with the envelope of a REQ socket.
#pragma once

#include <string>

#include "base/transport.h"

namespace newmoon {

// The answer's frames in hex, or why there is none within 5 s.
std::string ask_raw(const std::string& endpoint, const Frames& frames);

}  // namespace newmoon
