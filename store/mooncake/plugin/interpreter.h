// The Python interpreter of this process, with Mooncake's wheel in it.
#pragma once

#include <string>

#include "base/result.h"
#include "store/mooncake/client.h"
#include "store/mooncake/plugin/python.h"

namespace newmoon::python {

// Starts an isolated interpreter unless there is one, and imports `mooncake.store`, the
// first time only: from the wheel's folder, or, unless NEWMOON_MOONCAKE_DIR is set, what
// an interpreter that was here before has installed. An interpreter started here is never ended:
// ending it from another thread hangs. Signal handlers stay as they were. With
// an interpreter of our own the wheel's log goes to `log`. Any thread may call; it must not hold
// the GIL. kUnavailable: no interpreter, or the import fails; says what to install.
Result<PyObject*> import_mooncake(const std::string& wheel_folder, MooncakeLog log);

// From now on exit() ends the process before it comes to the destructors that are registered
// so far, the wheel's own among them: they close its clients under threads that are still in
// a call, as after a master's death, and the process crashes. Not in a program whose
// interpreter it is. After import_mooncake(), any thread.
void exit_before_destructors();

}  // namespace newmoon::python
