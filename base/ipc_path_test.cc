#include "base/ipc_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/testing/temp_dir.h"

namespace newmoon {
namespace {

using newmoon::testing::TempDir;
using ::testing::UnorderedElementsAre;

class SweepTest : public ::testing::Test {
 protected:
  std::string path_of(const std::string& name) const { return dir_.path() + "/" + name; }
  static void age(const std::string& path) {
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(60));
  }
  // What a killed server leaves: nobody listens, nobody holds the lock.
  void leave(const std::string& name) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_of(name).copy(address.sun_path, sizeof address.sun_path - 1);
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    std::ofstream(path_of(name + ".lock")).close();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  TempDir dir_;
};

TEST_F(SweepTest, WhatDeadServersLeftGoes) {
  for (const std::string name : {"a-rank0.sock", "a-rank1.sock"}) {
    leave(name);
    age(path_of(name + ".lock"));
  }
  sweep_dead_servers(dir_.path());
  EXPECT_THAT(files(), UnorderedElementsAre());
}

TEST_F(SweepTest, TheRestStays) {
  const Result<IpcPathLock> live = IpcPathLock::acquire(path_of("live.sock"));
  ASSERT_TRUE(live.has_value());
  age(path_of("live.sock.lock"));
  leave("young.sock");  // or about to be locked
  std::ofstream(path_of("other.lock")).close();
  age(path_of("other.lock"));
  sweep_dead_servers(dir_.path());
  EXPECT_THAT(files(), UnorderedElementsAre("live.sock.lock", "young.sock", "young.sock.lock",
                                            "other.lock"));
}

TEST_F(SweepTest, AFolderThatIsNotThereIsNoError) { sweep_dead_servers(path_of("nowhere")); }

}  // namespace
}  // namespace newmoon
