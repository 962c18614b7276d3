#include "base/log.h"
#include "python/bindings/bind.h"

namespace newmoon {
namespace {

// A plain reference: Python ends before this library does, and there is one interpreter.
PyObject* error_type = nullptr;

void set_log_level(const std::string& name) {
  LogLevel level = LogLevel::kWarning;
  if (!parse_log_level(name, &level)) {
    raise({Code::kBadRequest, "log level '" + name + "': use debug, info, warning or error"});
  }
  set_log_threshold(level);
}

}  // namespace

void raise(const Error& error) {
  const py::object instance =
      py::reinterpret_borrow<py::object>(error_type)(py::str(to_string(error)));
  instance.attr("code") = std::string(traits(error.code).wire_name);
  PyErr_SetObject(error_type, instance.ptr());
  throw py::error_already_set();
}

Duration to_duration(double seconds) {
  constexpr double kMaxSeconds = 24 * 3600;
  if (!(seconds > 0 && seconds <= kMaxSeconds)) {  // NaN too
    raise({Code::kBadRequest, "timeout_s " + std::string(py::str(py::float_(seconds))) +
                                  ": takes more than 0 and at most 86400 seconds"});
  }
  // Up: the least time is not none at all.
  return std::chrono::ceil<Duration>(std::chrono::duration<double>(seconds));
}

void bind_errors(py::module_& module) {
  error_type = PyErr_NewExceptionWithDoc(
      "newmoon.Error",
      "What the core refuses or cannot do. `code` says which kind: 'bad_request',\n"
      "'unavailable', 'deadline', 'busy', 'corrupt', 'fenced' or 'internal'.",
      PyExc_RuntimeError, nullptr);
  module.add_object("Error", error_type);
  set_log_prefix("newmoon: ");  // vLLM's lines, or the program's, stand between ours
  module.def("set_log_level", &set_log_level, py::arg("name"));
}

}  // namespace newmoon
