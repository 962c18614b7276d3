#include "cli/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace newmoon {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Ends at once when it goes, also one that was stopped.
class Child {
 public:
  explicit Child(const std::string& name)
      : process_(std::move(*ChildProcess::start(name, {"/bin/cat"}))) {}
  ~Child() { kill(process_.pid(), SIGKILL); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ChildProcess* operator->() { return &process_; }

 private:
  ChildProcess process_;
};

TEST(ChildProcess, WhatIsSentAndAnsweredMayBeLargerThanAPipe) {
  Child echo("echo");
  const Json request = {{"text", std::string(40'000, 'x')}};
  EXPECT_EQ(echo->call(request, seconds(60)), request);
}

TEST(ChildProcess, AStoppedChildHoldsUpNoSend) {
  Child stopped("stopped");
  kill(stopped->pid(), SIGSTOP);
  const Status sent = stopped->send({{"text", std::string(1 << 20, 'x')}}, milliseconds(100));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Code::kDeadline);
  EXPECT_THAT(sent.error().message, HasSubstr("stopped"));
}

// The timeouts are long, so that a wait for them fails the test by CTest's.
TEST(ChildProcess, WhatAChildDependsOnEndsItsCalls) {
  Child server("server");
  Child engine("engine");
  ASSERT_TRUE(engine->depend_on(server->pid(), "the server"));
  EXPECT_TRUE(engine->call({{"still", "there"}}, seconds(1000)));
  kill(server->pid(), SIGKILL);
  const Result<Json> reply = engine->receive(seconds(1000));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kUnavailable);
  EXPECT_EQ(reply.error().message, "the server has ended");
  kill(engine->pid(), SIGSTOP);
  const Status sent = engine->send({{"text", std::string(1 << 20, 'x')}}, seconds(1000));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().message, "the server has ended");
}

}  // namespace
}  // namespace newmoon
