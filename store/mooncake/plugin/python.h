// CPython's C API as the plugin uses it: ownership, the GIL, errors as text. Functions
// that take or return PyObject need the GIL.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace newmoon::python {

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Owns one reference; empty after a call that raised.
class Object {
 public:
  Object() = default;
  explicit Object(PyObject* stolen) : object_(stolen) {}
  Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Takes the exception that is set: "TypeError: ...", one line.
std::string take_error();

// `what` names the call in the message.
std::unexpected<Error> raised(std::string_view what);

// ASCII only, copied once: a key's text needs no decoding.
Object make_text(std::string_view ascii);
Object make_list(std::span<const std::string_view> ascii);
Object make_int(std::uint64_t value);

// Of no arguments. Empty if `name` is: its exception stands.
inline Object call_method(PyObject* object, const Object& name) {
  return name ? Object(PyObject_CallMethodNoArgs(object, name.get())) : Object();
}

// Empty if an argument is: its exception stands.
inline Object attribute(const Object& object, const Object& name) {
  if (!object || !name) return {};
  return Object(PyObject_GetAttr(object.get(), name.get()));
}

// Empty if an argument is: its exception stands.
template <class... Arguments>
Object call(const Object& function, const Arguments&... arguments) {
  if (!(static_cast<bool>(arguments) && ...)) return {};
  PyObject* const stack[] = {arguments.get()...};
  return Object(PyObject_Vectorcall(function.get(), stack, sizeof...(arguments), nullptr));
}

}  // namespace newmoon::python
