#include "base/temp_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace newmoon {
namespace {

constexpr std::string_view kPrefix = "newmoon-";
constexpr std::string_view kRandomPart = "XXXXXX";

// Only a folder with this in it is one of these; whoever is alive holds a lock on it.
constexpr const char* kLockFile = "/owner.lock";

bool is_ours(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 && status.st_uid == geteuid();
}

// A file system without locks, or another process's lock, means: leave it there.
void remove_if_abandoned(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_symlink(path, ignored)) return;
  const UniqueFd lock(open((path + kLockFile).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!lock || !is_ours(lock.get()) || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  std::filesystem::remove_all(path, ignored);
}

void remove_abandoned(const std::string& parent) {
  std::error_code error;
  std::filesystem::directory_iterator entries(parent, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename();
    if (name.size() != kPrefix.size() + kRandomPart.size() || !name.starts_with(kPrefix)) continue;
    remove_if_abandoned(entries->path());
  }
}

// Whether it is ours for good: another process may take a new one for abandoned before it
// is locked. On a file system without locks none is taken for anything.
bool lock_folder(const std::string& path, UniqueFd& lock) {
  const std::string file = path + kLockFile;
  lock = UniqueFd(open(file.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock) return errno != ENOENT;  // a full disk: it can be used all the same
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  return access(file.c_str(), F_OK) == 0;
}

}  // namespace

Result<TempFolder> TempFolder::create() {
  const char* variable = std::getenv("TMPDIR");
  const std::string parent = variable != nullptr && *variable != '\0' ? variable : "/tmp";
  remove_abandoned(parent);
  while (true) {
    std::string path = parent + "/" + std::string(kPrefix) + std::string(kRandomPart);
    if (mkdtemp(path.data()) == nullptr) {
      return fail(Code::kUnavailable, "cannot make a folder for sockets like " + path + ": " +
                                          std::strerror(errno) + "; set TMPDIR to one that works");
    }
    UniqueFd lock;
    if (lock_folder(path, lock)) return TempFolder(std::move(path), std::move(lock));
  }
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace newmoon
