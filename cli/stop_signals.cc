#include "cli/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

namespace newmoon {
namespace {

int open_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

}  // namespace

StopSignals::StopSignals() : fd_(open_signals()) {}

void StopSignals::wait() const {
  pollfd source{fd(), POLLIN, 0};
  while (poll(&source, 1, -1) < 0) {
  }
}

}  // namespace newmoon
