#include "base/ipc_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace newmoon {
namespace {

constexpr std::string_view kScheme = "ipc://";

std::unexpected<Error> fail_errno(const std::string& what, const std::string& path) {
  const std::string reason = std::strerror(errno);
  return fail(Code::kUnavailable, what + " " + path + ": " + reason);
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Status make_private_directories(const std::string& directory) {
  struct stat info{};
  if (stat(directory.c_str(), &info) == 0) return {};
  if (const Status made = make_private_directories(parent_of(directory)); !made) return made;
  if (mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return fail_errno("cannot create the socket directory", directory);
}

// Whoever can write the directory can put a socket of his own in our place.
Status check_directory(const std::string& directory) {
  struct stat info{};
  if (stat(directory.c_str(), &info) != 0) {
    return fail_errno("cannot use the socket directory", directory);
  }
  if (!S_ISDIR(info.st_mode)) {
    return fail(Code::kBadRequest, "socket directory " + directory + " is not a directory");
  }
  const bool sticky = (info.st_mode & S_ISVTX) != 0;
  if (info.st_uid != geteuid() && !(info.st_uid == 0 && sticky)) {
    return fail(Code::kBadRequest,
                "socket directory " + directory + " belongs to another user; choose one of yours");
  }
  if ((info.st_mode & S_IWOTH) != 0 && !sticky) {
    return fail(Code::kBadRequest,
                "socket directory " + directory + " is writable by everyone; chmod it to 0700");
  }
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    return fail_errno("cannot write the socket directory", directory);
  }
  return {};
}

std::string lock_path(const std::string& path) { return path + ".lock"; }

// The lock file is unlinked when it is released, so the file we locked may no longer
// be the one at the path: then it is somebody else's turn, and we try again.
Result<UniqueFd> lock_file(const std::string& path) {
  const std::string name = lock_path(path);
  while (true) {
    UniqueFd fd(open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return fail_errno("cannot open the lock file", name);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      return fail(Code::kUnavailable, "another server is running on ipc://" + path +
                                          "; stop it or choose another path");
    }
    struct stat locked{};
    struct stat present{};
    if (fstat(fd.get(), &locked) == 0 && lstat(name.c_str(), &present) == 0 &&
        locked.st_ino == present.st_ino && locked.st_dev == present.st_dev) {
      return fd;
    }
  }
}

Status remove_stale_socket(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode)) {
    return fail(Code::kBadRequest,
                path + " exists and is not a socket; remove it or choose another path");
  }
  if (somebody_listens(path)) {  // who knows no locks: vLLM's own server
    return fail(Code::kUnavailable,
                "another server is running on ipc://" + path + "; stop it or choose another path");
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return fail_errno("cannot remove the stale socket", path);
  }
  return {};
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

Result<std::string> parse_ipc_endpoint(const std::string& endpoint) {
  if (!endpoint.starts_with(kScheme)) {
    return fail(Code::kBadRequest, "endpoint '" + endpoint + "' must be ipc://PATH");
  }
  std::string path = endpoint.substr(kScheme.size());
  if (path.empty() || path.front() == '@' || path == "*" || path.back() == '/' ||
      path.find('\0') != std::string::npos) {
    return fail(Code::kBadRequest, "endpoint '" + endpoint + "' names no socket file");
  }
  if (path.size() >= sizeof sockaddr_un::sun_path) {
    return fail(Code::kBadRequest, "socket path " + path + " has " + std::to_string(path.size()) +
                                       " bytes; " +
                                       std::to_string(sizeof sockaddr_un::sun_path - 1) +
                                       " is the most a socket path can have");
  }
  return path;
}

Result<IpcPathLock> IpcPathLock::acquire(const std::string& path) {
  const std::string directory = parent_of(path);
  if (Status made = make_private_directories(directory); !made)
    return std::unexpected(made.error());
  if (Status fit = check_directory(directory); !fit) return std::unexpected(fit.error());
  Result<UniqueFd> fd = lock_file(path);
  if (!fd) return std::unexpected(fd.error());
  IpcPathLock lock(path, std::move(*fd));
  if (Status removed = remove_stale_socket(path); !removed) return std::unexpected(removed.error());
  return lock;
}

bool somebody_listens(const std::string& path) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
         errno == EAGAIN || errno == EINPROGRESS;
}

IpcPathLock::~IpcPathLock() {
  if (!fd_) return;
  (void)remove_stale_socket(path_);  // a destructor has nobody to tell
  unlink(lock_path(path_).c_str());
}

void sweep_dead_servers(const std::string& directory) {
  namespace fs = std::filesystem;
  constexpr std::string_view kSuffix = ".sock.lock";
  const auto youngest = fs::file_time_type::clock::now() - std::chrono::seconds(2);
  std::error_code error;
  std::vector<std::string> sockets;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string path = entry.path().string();
    const auto written = entry.last_write_time(error);
    if (error || !path.ends_with(kSuffix) || written > youngest) continue;
    sockets.push_back(path.substr(0, path.size() - std::string_view(".lock").size()));
  }
  // Whoever gets the lock of a dead server leaves nothing behind.
  for (const std::string& socket : sockets) (void)IpcPathLock::acquire(socket);
}

}  // namespace newmoon
