// SIGINT, SIGTERM and SIGHUP as something to poll, so that no handler runs anywhere and
// what a command has made is taken down by its destructors.
#pragma once

#include "base/ipc_path.h"

namespace newmoon {

class StopSignals {
 public:
  // Blocks them for this thread and all that it starts, processes too: construct it
  // before the first.
  StopSignals();

  int fd() const { return fd_.get(); }  // readable once one has come
  void wait() const;

 private:
  UniqueFd fd_;
};

}  // namespace newmoon
