// A fresh folder of our own (mode 0700) for sockets, gone with the object.
#pragma once

#include <string>
#include <utility>

#include "base/ipc_path.h"
#include "base/result.h"

namespace newmoon {

// Locked (flock) for as long as its owner lives, so that what a killed one left behind is
// known from what is in use.
class TempFolder {
 public:
  // In $TMPDIR, else /tmp; removes those of dead owners there first, if they are this
  // user's. kUnavailable: names the folder that cannot be written.
  static Result<TempFolder> create();
  TempFolder(TempFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}
  TempFolder& operator=(TempFolder&&) = delete;
  ~TempFolder();

  const std::string& path() const { return path_; }

 private:
  TempFolder(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

}  // namespace newmoon
