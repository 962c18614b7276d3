#include "store/mooncake/plugin/interpreter.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "store/mooncake/plugin/signals.h"
#include "store/mooncake/plugin/wheel_log.h"

namespace newmoon::python {
namespace {

bool interpreter_is_ours = false;

void end_at_once(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

Status start_interpreter() {
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.site_import = 0;
  config.write_bytecode = 0;
  const PyStatus started = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(started)) {
    return fail(Code::kUnavailable,
                std::string("cannot start Python 3.11: ") +
                    (started.err_msg == nullptr ? "no reason given" : started.err_msg) +
                    " (its standard library is in the package libpython3.11-stdlib)");
  }
  PyEval_SaveThread();  // to be taken with Gil from now on, by any thread
  return {};
}

// nullptr: an exception is set.
PyObject* import_installed() { return PyImport_ImportModule("mooncake.store"); }

PyObject* import_from(const std::string& wheel_folder) {
  const Object folder(PyUnicode_DecodeFSDefault(wheel_folder.c_str()));
  PyObject* const path = PySys_GetObject("path");  // borrowed
  if (!folder || path == nullptr || PyList_Insert(path, 0, folder.get()) != 0) return nullptr;
  PyObject* const module = import_installed();
  // Not for what else a program imports.
  if (module != nullptr && PySequence_DelItem(path, 0) != 0) PyErr_Clear();
  return module;
}

// A Python that was here before may have the wheel installed; its own counts, unless a
// folder was named.
Result<PyObject*> import_store(const std::string& wheel_folder, bool ours) {
  const Gil gil;
  const bool is_named = std::getenv("NEWMOON_MOONCAKE_DIR") != nullptr;
  PyObject* module = ours || is_named ? nullptr : import_installed();
  if (module != nullptr) return module;
  PyErr_Clear();
  module = import_from(wheel_folder);
  if (module != nullptr) return module;
  const std::string remedy =
      ours ? "run ./dev setup, which installs it"
           : "pip install mooncake-transfer-engine-non-cuda, or set NEWMOON_MOONCAKE_DIR";
  return fail(Code::kUnavailable, "cannot import mooncake.store from " +
                                      (wheel_folder.empty() ? "this Python" : wheel_folder) + ": " +
                                      take_error() + "; " + remedy);
}

Result<PyObject*> import_first(const std::string& wheel_folder, MooncakeLog log) {
  // Upstream tries 20 times, for 90 s. Set before the wheel has threads that read it.
  setenv("MC_STORE_CLIENT_SETUP_RETRIES", "1", 0);
  const KeepSignalHandlers keep;
  const bool ours = Py_IsInitialized() == 0;
  if (ours) {
    if (Status started = start_interpreter(); !started) return std::unexpected(started.error());
    interpreter_is_ours = true;
  }
  Result<PyObject*> module = import_store(wheel_folder, ours);
  // A program that has Python already may have plans of its own for the wheel's log.
  if (module && ours) redirect_wheel_log(log);
  return module;
}

}  // namespace

void exit_before_destructors() {
  if (interpreter_is_ours) on_exit(end_at_once, nullptr);
}

Result<PyObject*> import_mooncake(const std::string& wheel_folder, MooncakeLog log) {
  static std::mutex mutex;
  static PyObject* module = nullptr;  // for the life of the process, as the interpreter
  const std::lock_guard lock(mutex);
  if (module != nullptr) return module;
  Result<PyObject*> imported = import_first(wheel_folder, log);
  if (imported) module = *imported;
  return imported;
}

}  // namespace newmoon::python
