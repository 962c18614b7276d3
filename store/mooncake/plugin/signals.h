// Keeps the handlers of signals as they are over a call that sets some of its own.
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>

namespace newmoon {

class KeepSignalHandlers {
 public:
  KeepSignalHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~KeepSignalHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  static constexpr std::array kSignals = {SIGPIPE, SIGSEGV, SIGBUS, SIGFPE, SIGURG,
                                          SIGINT,  SIGTERM, SIGHUP, SIGABRT};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace newmoon
