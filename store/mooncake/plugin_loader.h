// Brings the Mooncake plugin and the Python it needs into this process.
#pragma once

#include <memory>

#include "base/result.h"
#include "store/mooncake/client.h"

namespace newmoon {

// A client that has not joined a store yet. The plugin is newmoon_mooncake.so in the
// folder of the program, or of the Python extension that this code is part of. Python is
// the process's own, else $NEWMOON_LIBPYTHON, else the system's libpython3.11.so.1.0. The
// wheel is where mooncake_wheel_folder() says; a Python that was here before has its own
// installed, which counts unless NEWMOON_MOONCAKE_DIR is set. All stay loaded. The wheel's
// log goes to ours at debug level, and stays as it is in a Python that was here before.
// A thread that holds the GIL must not call.
// Signals: the wheel's threads inherit the mask of the thread that calls this and
// setup(), so that should block all of them.
// kUnavailable: what is missing, and what to do.
Result<std::unique_ptr<MooncakeClient>> load_mooncake_client();

}  // namespace newmoon
