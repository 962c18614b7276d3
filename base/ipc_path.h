// The file-system side of an `ipc://PATH` endpoint: who may bind it, and that no two
// servers ever share one (upstream lets the second steal the first one's path).
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace newmoon {

// A file descriptor, closed when it goes.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// PATH of `ipc://PATH`. kBadRequest: another transport (there is no TCP without keys,
// and none is needed), no path, an abstract or wildcard one, or one that does not fit
// into a sockaddr_un.
Result<std::string> parse_ipc_endpoint(const std::string& endpoint);

// Whether a process has a socket at PATH, of whatever kind; it need not answer. REQUIRES: PATH is
// of parse_ipc_endpoint().
bool somebody_listens(const std::string& path);

// The right to bind PATH: holds a lock on PATH.lock for as long as it lives, so that
// it needs no trust in whatever socket file is lying there. Removes the socket file (if
// nobody listens on it any more) and the lock file when it goes. One thread at a time.
class IpcPathLock {
 public:
  // Creates missing parent directories with mode 0700 and removes the socket that a
  // dead server left behind. kBadRequest: the directory is not ours or open to others,
  // or PATH is no socket. kUnavailable: not writable, or a live server has it.
  static Result<IpcPathLock> acquire(const std::string& path);

  IpcPathLock(IpcPathLock&&) noexcept = default;
  IpcPathLock& operator=(IpcPathLock&&) = delete;
  ~IpcPathLock();

 private:
  IpcPathLock(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

// Removes what killed servers left in the directory: each NAME.sock whose lock nobody
// holds, with the lock. Files of the last two seconds stay: their server may be about to
// lock them. What cannot be removed stays too.
void sweep_dead_servers(const std::string& directory);

}  // namespace newmoon
