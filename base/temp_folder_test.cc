#include "base/temp_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temp_dir.h"

namespace newmoon {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class TempFolderTest : public ::testing::Test {
 protected:
  TempFolderTest() { setenv("TMPDIR", parent_.path().c_str(), 1); }
  ~TempFolderTest() override { unsetenv("TMPDIR"); }

  std::vector<std::string> entries() const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(parent_.path())) {
      paths.push_back(entry.path());
    }
    return paths;
  }
  // Of a process that was killed while it had one, with a file in it.
  void leave_one_behind() const {
    const pid_t child = fork();
    if (child == 0) {
      const auto folder = TempFolder::create();
      if (folder) std::ofstream(folder->path() + "/socket") << "left";
      raise(SIGKILL);
    }
    waitpid(child, nullptr, 0);
  }

  const testing::TempDir parent_;
};

TEST_F(TempFolderTest, IsPrivateAndGoesWithTheObject) {
  {
    const auto folder = TempFolder::create();
    ASSERT_TRUE(folder);
    struct stat status{};
    ASSERT_EQ(stat(folder->path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    EXPECT_THAT(entries(), UnorderedElementsAre(folder->path()));
  }
  EXPECT_THAT(entries(), IsEmpty());
}

TEST_F(TempFolderTest, WhatAKilledProcessLeftIsRemovedByTheNext) {
  leave_one_behind();
  ASSERT_EQ(entries().size(), 1u);
  const auto folder = TempFolder::create();
  EXPECT_THAT(entries(), UnorderedElementsAre(folder->path()));
}

TEST_F(TempFolderTest, FoldersInUseStay) {
  const auto first = TempFolder::create();
  const TempFolder moved = TempFolder(std::move(*TempFolder::create()));
  const auto last = TempFolder::create();
  EXPECT_THAT(entries(), UnorderedElementsAre(first->path(), moved.path(), last->path()));
}

TEST_F(TempFolderTest, WhatIsNotOneOfThemStays) {
  const std::string other = parent_.path() + "/newmoon-models";  // 6 letters, as ours
  const std::string target = parent_.path() + "/target";
  const std::string link = parent_.path() + "/newmoon-abcdef";
  const std::string file = parent_.path() + "/newmoon-ghijkl";
  std::filesystem::create_directory(other);
  std::filesystem::create_directory(target);
  std::ofstream(target + "/owner.lock") << "text";
  std::filesystem::create_directory_symlink(target, link);
  std::ofstream(file) << "text";
  const auto folder = TempFolder::create();
  EXPECT_THAT(entries(), UnorderedElementsAre(other, target, link, file, folder->path()));
}

}  // namespace
}  // namespace newmoon
