// A fresh folder of our own (mode 0700) for sockets, gone with the object.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace newmoon {

class TempFolder {
 public:
  // In $TMPDIR, else /tmp. kUnavailable: names the folder that cannot be written.
  static Result<TempFolder> create();
  TempFolder(TempFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempFolder& operator=(TempFolder&&) = delete;
  ~TempFolder();

  const std::string& path() const { return path_; }

 private:
  explicit TempFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace newmoon
