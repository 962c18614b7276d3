#include "store/mooncake/master_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "store/testing/mooncake_master.h"

namespace newmoon {
namespace {

using ::testing::HasSubstr;

bool is_running(pid_t pid) { return ::kill(pid, 0) == 0; }

TEST(MooncakeMasterTest, AnswersAndEndsWithItsOwner) {
  SystemClock clock;
  std::optional<MooncakeMaster> master(testing::start_mooncake_master(clock));
  const pid_t pid = master->pid();
  const std::string log = master->log_path();
  EXPECT_TRUE(is_running(pid));
  EXPECT_EQ(master->url(), "mooncake://127.0.0.1:" + std::to_string(master->rpc_port()) +
                               "?metrics_port=" + std::to_string(master->metrics_port()));
  EXPECT_TRUE(std::filesystem::exists(log));
  master.reset();
  EXPECT_FALSE(is_running(pid));
  EXPECT_FALSE(std::filesystem::exists(log));
}

TEST(MooncakeMasterTest, KilledAndBackOnTheSamePorts) {
  SystemClock clock;
  MooncakeMaster master = testing::start_mooncake_master(clock);
  const std::string url = master.url();
  const pid_t first = master.pid();
  master.kill();
  EXPECT_EQ(master.pid(), -1);
  EXPECT_FALSE(is_running(first));
  const Status back = master.restart();
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(is_running(master.pid()));
  EXPECT_EQ(master.url(), url);
}

TEST(MooncakeMasterTest, TakenPortIsNamed) {
  SystemClock clock;
  const MooncakeMaster first = testing::start_mooncake_master(clock);
  for (const auto& [rpc, metrics, taken] :
       {std::tuple(first.rpc_port(), std::uint16_t{0}, first.rpc_port()),
        std::tuple(std::uint16_t{0}, first.metrics_port(), first.metrics_port())}) {
    const auto second =
        MooncakeMaster::start(clock, {.rpc_port = rpc, .metrics_port = metrics, .flags = {}});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Code::kUnavailable);
    EXPECT_THAT(second.error().message, HasSubstr("port " + std::to_string(taken)));
  }
}

TEST(MooncakeMasterTest, BadFlagIsSaidWithTheMastersWords) {
  SystemClock clock;
  const auto master = MooncakeMaster::start(clock, {.flags = {"--no_such_flag=1"}});
  ASSERT_FALSE(master);
  EXPECT_EQ(master.error().code, Code::kUnavailable);
  EXPECT_THAT(master.error().message, HasSubstr("no_such_flag"));
}

// The owner is killed, so no destructor runs.
TEST(MooncakeMasterTest, DiesWithAKilledOwner) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    SystemClock clock;
    const auto master = MooncakeMaster::start(clock);
    const pid_t pid = master ? master->pid() : -1;
    if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    pause();
  }
  pid_t master = -1;
  ASSERT_EQ(read(ends[0], &master, sizeof master), static_cast<ssize_t>(sizeof master));
  ASSERT_GT(master, 0);
  EXPECT_TRUE(is_running(master));
  ::kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  SystemClock clock;
  const Time deadline = clock.now() + std::chrono::seconds(10);
  while (is_running(master) && clock.now() < deadline) {
    clock.sleep_until(clock.now() + std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(is_running(master));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace newmoon
