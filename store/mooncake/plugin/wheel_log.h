// The log of Mooncake's wheel, which without this goes to descriptor 2.
#pragma once

#include "store/mooncake/client.h"

namespace newmoon {

// Hands every line that the wheel logs from now on to `log` instead. It logs through a
// glog of its own; false: that glog is not of the kind this knows, and stays as it is.
// Once a process.
bool redirect_wheel_log(MooncakeLog log);

}  // namespace newmoon
