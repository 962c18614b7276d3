#include "base/temp_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace newmoon {

Result<TempFolder> TempFolder::create() {
  const char* parent = std::getenv("TMPDIR");
  std::string path = (parent != nullptr && *parent != '\0' ? std::string(parent) : "/tmp");
  path += "/newmoon-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return fail(Code::kUnavailable, "cannot make a folder for sockets like " + path + ": " +
                                        std::strerror(errno) + "; set TMPDIR to one that works");
  }
  return TempFolder(std::move(path));
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace newmoon
