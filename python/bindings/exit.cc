#include <unistd.h>

#include <set>
#include <utility>

#include "python/bindings/bind.h"

namespace newmoon {
namespace {

std::set<CloseAtExit*> open_ones;  // guarded by the GIL

}  // namespace

CloseAtExit::CloseAtExit(std::function<void()> close)
    : close_(std::move(close)), opened_by_(getpid()) {
  open_ones.insert(this);
}

CloseAtExit::~CloseAtExit() { open_ones.erase(this); }

bool CloseAtExit::is_forked() const { return getpid() != opened_by_; }

void bind_exit() {
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    while (!open_ones.empty()) {
      const CloseAtExit* one = *open_ones.begin();
      open_ones.erase(open_ones.begin());
      try {
        one->close_();
      } catch (py::error_already_set& error) {  // in use by a thread that nobody waits for
        error.discard_as_unraisable("newmoon at exit");
      }
    }
  }));
}

}  // namespace newmoon
