// What the bindings share: errors, bytes, hashes. A Result becomes a value or the
// exception newmoon.Error; no other layer knows exceptions.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "hash/block_hash.h"
#include "hash/scope.h"

namespace newmoon {

namespace py = pybind11;

void bind_exit();
void bind_errors(py::module_& module);
void bind_hash(py::module_& module);
void bind_store(py::module_& module);
void bind_fence(py::module_& module);
void bind_connector(py::module_& module);
void bind_lookup_client(py::module_& module);

// Raises newmoon.Error. Needs the GIL.
[[noreturn]] void raise(const Error& error);

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}
inline void ok_or_raise(const Status& status) {
  if (!status) raise(status.error());
}

inline py::bytes to_python(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
// The bytes live as long as `bytes` does.
inline ByteView view_of(const py::bytes& bytes) {
  return as_bytes(static_cast<std::string_view>(bytes));
}

BlockHash to_block_hash(const py::handle& bytes);
// Of a sequence of bytes objects, from the `begin`th on.
std::vector<BlockHash> to_block_hashes(const py::sequence& hashes, std::size_t begin = 0);
// Both null: a unique identity, which is the caller's to make. kBadRequest: both given.
std::optional<WeightsIdentity> to_weights(const std::optional<py::bytes>& digest,
                                          const std::optional<std::string>& label);

// What may wait, or has threads that may want the GIL.
template <class Work>
auto without_gil(Work work) {
  const py::gil_scoped_release release;
  return work();
}

// For an object of one thread that lets others run while it waits: another thread's call is then
// an error and no race. Needs the GIL, which guards it too.
class OneThread {
 public:
  // Raises Error: kBadRequest while a call is under way.
  void check() const {
    if (busy_) raise({Code::kBadRequest, "another thread uses this object now; it is of one"});
  }
  template <class Work>
  auto without_gil(Work work) {
    check();
    busy_ = true;
    const struct Done {
      bool& busy;
      ~Done() { busy = false; }
    } done{busy_};
    return newmoon::without_gil(std::move(work));
  }

 private:
  bool busy_ = false;
};

// While it lives `close` is called before the interpreter ends: a thread of ours that asked
// for the GIL afterwards would bring the process down. Needs the GIL.
class CloseAtExit {
 public:
  explicit CloseAtExit(std::function<void()> close);
  ~CloseAtExit();
  // What was opened stands on threads and connections, which a fork does not take along: in a
  // child it can neither be used nor closed.
  bool is_forked() const;
  CloseAtExit(const CloseAtExit&) = delete;
  CloseAtExit& operator=(const CloseAtExit&) = delete;

 private:
  friend void bind_exit();
  const std::function<void()> close_;
  const pid_t opened_by_;
};

// Raises Error: kBadRequest for what is no time to wait: 0, negative, NaN, more than a day.
Duration to_duration(double seconds);

}  // namespace newmoon
