#include "base/zmq_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/executor.h"
#include "base/ipc_path.h"
#include "base/testing/out_of_memory.h"
#include "base/testing/raw_zmq_socket.h"
#include "base/testing/temp_dir.h"

namespace newmoon {
namespace {

using newmoon::testing::RawZmqSocket;
using newmoon::testing::TempDir;
using ::testing::HasSubstr;

constexpr auto kLong = std::chrono::seconds(10);

Frames frames_of(std::initializer_list<std::string_view> texts) {
  Frames frames;
  for (const std::string_view text : texts) frames.push_back(to_bytes(text));
  return frames;
}

void echo(Frames message, const ReplyFn& reply) { reply(std::move(message)); }

std::unique_ptr<ZmqServer> start(const std::string& endpoint, MessageHandler handler = echo,
                                 ZmqLimits limits = {}) {
  Result<std::unique_ptr<ZmqServer>> server =
      ZmqServer::start(endpoint, std::move(handler), limits);
  EXPECT_TRUE(server.has_value()) << server.error().message;
  return server ? std::move(*server) : nullptr;
}

std::unique_ptr<ZmqClientTransport> connect(std::vector<std::string> endpoints, Clock& clock,
                                            ZmqLimits limits = {}) {
  auto client = ZmqClientTransport::connect(std::move(endpoints), clock, limits);
  EXPECT_TRUE(client.has_value());
  return std::move(*client);
}

class ZmqTransportTest : public ::testing::Test {
 protected:
  std::optional<std::pair<std::size_t, Frames>> next(ZmqClientTransport& client) {
    return client.wait(clock_.now() + kLong) ? client.receive() : std::nullopt;
  }

  TempDir dir_;
  SystemClock clock_;
  const std::string endpoint_ = dir_.endpoint("socket");
};

TEST_F(ZmqTransportTest, AnswersReqClientWithoutItsEnvelope) {
  const auto server = start(endpoint_);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  EXPECT_EQ(req.ask(frames_of({"a", "", "b"})), frames_of({"a", "", "b"}));
  EXPECT_EQ(req.ask(frames_of({"again"})), frames_of({"again"}));
}

TEST_F(ZmqTransportTest, AnswersEachFormOfDealerInItsOwnForm) {
  const auto server = start(endpoint_);
  RawZmqSocket dealer(ZMQ_DEALER, endpoint_);
  EXPECT_EQ(dealer.ask(frames_of({"", "x", "y"})), frames_of({"", "x", "y"}));
  EXPECT_EQ(dealer.ask(frames_of({"x", "y"})), frames_of({"x", "y"}));
  EXPECT_EQ(dealer.ask(frames_of({"", ""})), frames_of({"", ""}));
  EXPECT_EQ(dealer.ask(frames_of({"corr", "", "x"})), frames_of({"corr", "", "x"}));
}

TEST_F(ZmqTransportTest, AnswersReqWithCorrelationIds) {
  const auto server = start(endpoint_);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  req.set(ZMQ_REQ_CORRELATE, 1);
  EXPECT_EQ(req.ask(frames_of({"x"})), frames_of({"x"}));
}

TEST_F(ZmqTransportTest, HandsOverNoFramesForADelimiterAlone) {
  const auto server = start(endpoint_, [](Frames message, const ReplyFn& reply) {
    reply({{static_cast<std::uint8_t>(message.size())}});
  });
  RawZmqSocket dealer(ZMQ_DEALER, endpoint_);
  EXPECT_EQ(dealer.ask({{}}), (Frames{{}, {0}}));
}

TEST_F(ZmqTransportTest, AnswersForAHandlerThatThrowsOrDropsItsReply) {
  const auto server = start(endpoint_, [](Frames message, const ReplyFn& reply) {
    if (message[0] == to_bytes("throw")) throw std::runtime_error("planted");
    if (message[0] == to_bytes("echo")) reply(std::move(message));
  });
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  EXPECT_EQ(req.ask(frames_of({"throw"})), (Frames{{0}}));
  EXPECT_EQ(req.ask(frames_of({"drop"})), (Frames{{0}}));
  EXPECT_EQ(req.ask(frames_of({"echo"})), frames_of({"echo"}));
}

// Without the memory for its first frame, the rest of a message must not be taken for
// the next one.
TEST_F(ZmqTransportTest, RefusesAMessageThereIsNoMemoryForAndServesOn) {
  const auto server = start(endpoint_);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  const Frames large = {Bytes(8 << 20), to_bytes("behind")};
  {
    const newmoon::testing::NoMemoryFrom from(4 << 20);
    EXPECT_EQ(req.ask(large), (Frames{{0}}));
    EXPECT_EQ(req.ask(frames_of({"small"})), frames_of({"small"}));
  }
  EXPECT_EQ(req.ask(large), large);
}

TEST_F(ZmqTransportTest, SendsOnlyTheFirstOfTwoAnswers) {
  const auto server = start(endpoint_, [](Frames message, const ReplyFn& reply) {
    reply(message);
    reply(frames_of({"second"}));
  });
  RawZmqSocket dealer(ZMQ_DEALER, endpoint_);
  EXPECT_EQ(dealer.ask(frames_of({"1"})), frames_of({"1"}));
  EXPECT_EQ(dealer.ask(frames_of({"2"})), frames_of({"2"}));
}

TEST_F(ZmqTransportTest, AnswersFromOtherThreadsAndOutOfOrder) {
  ThreadExecutor executor("answers");
  std::mutex mutex;
  std::vector<ReplyFn> held;
  const auto server = start(endpoint_, [&](Frames message, ReplyFn reply) {
    std::lock_guard lock(mutex);
    if (message[0] == to_bytes("first")) {
      held.push_back(std::move(reply));
      return;
    }
    held.push_back(std::move(reply));
    executor.post([&] {
      std::lock_guard lock(mutex);
      held[1](frames_of({"second"}));
      held[0](frames_of({"first"}));
    });
  });
  const auto client = connect({endpoint_}, clock_);
  ASSERT_TRUE(client->send(0, frames_of({"first"})));
  ASSERT_TRUE(client->send(0, frames_of({"second"})));
  EXPECT_EQ(next(*client)->second, frames_of({"second"}));
  EXPECT_EQ(next(*client)->second, frames_of({"first"}));
}

TEST_F(ZmqTransportTest, RefusesFramesBeyondTheLimitsAndServesOn) {
  const auto server = start(endpoint_, echo, {.message_bytes_max = 1000, .frames_max = 4});
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  EXPECT_EQ(req.ask(Frames(9, to_bytes("x"))), (Frames{{0}}));
  EXPECT_EQ(req.ask(Frames(2, Bytes(900))), (Frames{{0}}));
  RawZmqSocket rude(ZMQ_DEALER, endpoint_);
  ASSERT_TRUE(rude.send({Bytes(2000)}));  // one frame too large: its connection goes
  EXPECT_EQ(req.ask(frames_of({"still", "here"})), frames_of({"still", "here"}));
}

TEST_F(ZmqTransportTest, ServesManyClientsAtOnce) {
  const auto server = start(endpoint_);
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      RawZmqSocket req(ZMQ_REQ, endpoint_);
      for (int i = 0; i < 50; ++i) {
        const Frames message = frames_of({std::to_string(t), std::to_string(i)});
        right += req.ask(message) == message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST_F(ZmqTransportTest, ReplyAfterStopDoesNothing) {
  ReplyFn kept;
  std::atomic<bool> taken = false;
  const auto server = start(endpoint_, [&](Frames, ReplyFn reply) {
    kept = std::move(reply);
    taken = true;
  });
  const auto client = connect({endpoint_}, clock_);
  ASSERT_TRUE(client->send(0, frames_of({"x"})));
  while (!taken) std::this_thread::yield();
  server->stop();
  server->stop();
  kept(frames_of({"late"}));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/socket"));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/socket.lock"));
}

TEST_F(ZmqTransportTest, StopsWithClientsThatNeverRead) {
  const auto server = start(endpoint_);
  RawZmqSocket deaf(ZMQ_DEALER, endpoint_);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(deaf.send({Bytes(10'000)}));
  const Time before = clock_.now();
  server->stop();
  EXPECT_LT(clock_.now() - before, kLong);
}

TEST_F(ZmqTransportTest, ClientSeesWhichPeerAnswered) {
  const auto zero = start(dir_.endpoint("0"));
  const auto one = start(dir_.endpoint("1"));
  const auto client = connect({zero->endpoint(), one->endpoint()}, clock_);
  EXPECT_EQ(client->peer_count(), 2U);
  ASSERT_TRUE(client->send(1, frames_of({"to 1"})));
  EXPECT_EQ(next(*client), std::pair(std::size_t{1}, frames_of({"to 1"})));
  ASSERT_TRUE(client->send(0, frames_of({"to 0"})));
  EXPECT_EQ(next(*client), std::pair(std::size_t{0}, frames_of({"to 0"})));
  EXPECT_EQ(client->receive(), std::nullopt);
}

TEST_F(ZmqTransportTest, ClientNeitherBlocksNorGrowsWithoutAServer) {
  const auto client = connect({endpoint_}, clock_, {.queued_messages_max = 10});
  int sent = 0;
  while (sent < 1000 && client->send(0, frames_of({"x"}))) ++sent;
  EXPECT_EQ(sent, 10);
  const Status refused = client->send(0, frames_of({"x"}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_THAT(refused.error().message, HasSubstr(endpoint_));
  EXPECT_FALSE(client->wait(clock_.now()));
}

TEST_F(ZmqTransportTest, ClientReachesAServerThatStartsLateOrReturns) {
  const auto client = connect({endpoint_}, clock_);
  ASSERT_TRUE(client->send(0, frames_of({"early"})));
  auto server = start(endpoint_);
  EXPECT_EQ(next(*client)->second, frames_of({"early"}));
  server.reset();
  server = start(endpoint_);
  // What was sent into the dying connection may be lost; what is sent later is not.
  bool answered = false;
  for (int i = 0; i < 100 && !answered; ++i) {
    ASSERT_TRUE(client->send(0, frames_of({"again"})));
    answered = client->wait(clock_.now() + std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(answered);
}

TEST_F(ZmqTransportTest, NoAnswerFromBeforeReopenArrivesAfterIt) {
  std::mutex mutex;
  std::vector<ReplyFn> held;
  const auto server = start(endpoint_, [&](Frames message, ReplyFn reply) {
    std::lock_guard lock(mutex);
    if (message[0] == to_bytes("old")) {
      held.push_back(std::move(reply));
      reply = nullptr;
      return;
    }
    for (const ReplyFn& old : held) old(frames_of({"old"}));
    reply(frames_of({"new"}));
  });
  const auto client = connect({endpoint_}, clock_);
  ASSERT_TRUE(client->send(0, frames_of({"old"})));
  while (true) {
    std::lock_guard lock(mutex);
    if (!held.empty()) break;
  }
  client->reopen(0);
  ASSERT_TRUE(client->send(0, frames_of({"new"})));
  EXPECT_EQ(next(*client)->second, frames_of({"new"}));
  EXPECT_FALSE(client->wait(clock_.now() + std::chrono::milliseconds(50)));
}

TEST_F(ZmqTransportTest, CreatesThePrivateDirectoryOfTheSocket) {
  const auto server = start(dir_.endpoint("a/b/socket"));
  struct stat info{};
  ASSERT_EQ(stat((dir_.path() + "/a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
  ASSERT_EQ(stat((dir_.path() + "/a/b/socket").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST_F(ZmqTransportTest, TwoServersNeverShareAPath) {
  const auto first = start(endpoint_);
  const auto second = ZmqServer::start(endpoint_, echo);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr(endpoint_));
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  EXPECT_EQ(req.ask(frames_of({"x"})), frames_of({"x"}));  // the first one still has it
}

TEST_F(ZmqTransportTest, LeavesASocketAloneThatAForeignServerHas) {
  RawZmqSocket foreign(ZMQ_REP, endpoint_, /*bind=*/true);
  const auto server = ZmqServer::start(endpoint_, echo);
  ASSERT_FALSE(server);
  EXPECT_THAT(server.error().message, HasSubstr("another server"));
}

TEST_F(ZmqTransportTest, ReplacesAStaleSocket) {
  const std::string path = dir_.path() + "/socket";
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  std::ofstream(path + ".lock") << "left behind";
  const auto server = start(endpoint_);
  RawZmqSocket req(ZMQ_REQ, endpoint_);
  EXPECT_EQ(req.ask(frames_of({"x"})), frames_of({"x"}));
}

TEST_F(ZmqTransportTest, RefusesBadEndpointsByName) {
  std::ofstream(dir_.path() + "/file") << "precious";
  std::filesystem::create_directory(dir_.path() + "/open");
  std::filesystem::permissions(dir_.path() + "/open", std::filesystem::perms::all);
  const std::string long_name(120, 'n');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tcp://127.0.0.1:5555", "must be ipc://"},
      {"", "must be ipc://"},
      {"ipc://", "names no socket"},
      {"ipc://*", "names no socket"},
      {"ipc://@abstract", "names no socket"},
      {dir_.endpoint(long_name), "107 is the most"},
      {dir_.endpoint("file"), "is not a socket"},
      {dir_.endpoint("file/socket"), "is not a directory"},
      {dir_.endpoint("open/socket"), "writable by everyone"},
      {"ipc:///proc/newmoon/socket", "/proc/newmoon"},
  };
  for (const auto& [endpoint, expected] : cases) {
    const auto server = ZmqServer::start(endpoint, echo);
    ASSERT_FALSE(server) << endpoint;
    EXPECT_THAT(server.error().message, HasSubstr(expected));
  }
  std::ifstream file(dir_.path() + "/file");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "precious");
  EXPECT_FALSE(ZmqClientTransport::connect({"tcp://127.0.0.1:5555"}, clock_));
}

}  // namespace
}  // namespace newmoon
