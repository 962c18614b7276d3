// The command in a process of its own, spoken to as vLLM's client would.
#include "cli/cmd_lookup_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "admin/protocol.h"
#include "base/testing/raw_zmq_socket.h"
#include "base/testing/temp_dir.h"
#include "cli/bench_lookup.h"

namespace newmoon {
namespace {

using newmoon::testing::RawZmqSocket;
using newmoon::testing::TempDir;
using ::testing::HasSubstr;

// Owns the child and what it wrote on stderr.
class ServerProcess {
 public:
  explicit ServerProcess(const LookupServerOptions& options) {
    std::array<int, 2> errors{};
    EXPECT_EQ(pipe(errors.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(errors[1], STDERR_FILENO);
      _exit(run_lookup_server(options));
    }
    close(errors[1]);
    errors_ = errors[0];
  }
  ~ServerProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(errors_);
  }

  void terminate() { kill(pid_, SIGTERM); }
  int wait_for_exit_code() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string errors() {
    std::string text(1000, '\0');
    const ssize_t size = read(errors_, text.data(), text.size());
    return text.substr(0, size > 0 ? static_cast<std::size_t>(size) : 0);
  }

 private:
  pid_t pid_ = -1;
  int errors_ = -1;
};

class LookupServerCommandTest : public ::testing::Test {
 protected:
  std::string write_preload(const std::string& text) {
    std::string path = dir_.path() + "/preload";
    std::ofstream(path) << text;
    return path;
  }
  LookupServerOptions options(const std::string& preload) {
    return {.endpoint = dir_.endpoint("server"), .preload_path = write_preload(preload)};
  }
  LookupRequest lookup_of(std::initializer_list<char> hashes) {
    LookupRequest request;
    request.num_tokens = 100;
    for (const char c : hashes) request.block_hashes.emplace_back(*from_hex(std::string(64, c)));
    return request;
  }

  TempDir dir_;
};

TEST_F(LookupServerCommandTest, AnswersInTokensUntilResetAndEndsOnSigterm) {
  const std::string preload =
      std::string(64, '1') + "\n" + std::string(64, '2') + "\r\n\n" + std::string(64, '4');
  ServerProcess server(options(preload));
  RawZmqSocket req(ZMQ_REQ, dir_.endpoint("server"));
  const auto hit = [](std::uint8_t tokens) { return Frames{{0, 0, 0, tokens}}; };
  for (const ForeignDialect dialect : {ForeignDialect::kVllm, ForeignDialect::kSeed}) {
    // 3 is not there, so the contiguous hit ends before it.
    EXPECT_EQ(req.ask(encode_foreign_lookup(dialect, lookup_of({'1', '2', '3', '4'}))), hit(32));
    EXPECT_EQ(req.ask(encode_foreign_lookup(dialect, lookup_of({'3', '1'}))), hit(0));
  }
  EXPECT_EQ(req.ask({to_bytes("noise")}), (Frames{{0}}));
  EXPECT_EQ(req.ask(encode_foreign_reset()), (Frames{{1}}));
  EXPECT_EQ(req.ask(encode_foreign_lookup(ForeignDialect::kVllm, lookup_of({'1', '2'}))), hit(0));
  EXPECT_EQ(req.ask(encode_foreign_reset()), (Frames{{1}}));
  server.terminate();
  EXPECT_EQ(server.wait_for_exit_code(), 0);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/server"));
}

TEST_F(LookupServerCommandTest, BlockSizeCountsInTheAnswer) {
  LookupServerOptions with_size = options(std::string(64, '1') + "\n" + std::string(64, '2'));
  with_size.block_size = 32;
  ServerProcess server(with_size);
  RawZmqSocket req(ZMQ_REQ, dir_.endpoint("server"));
  EXPECT_EQ(req.ask(encode_foreign_lookup(ForeignDialect::kVllm, lookup_of({'1', '2'}))),
            (Frames{{0, 0, 0, 64}}));
}

TEST_F(LookupServerCommandTest, BadInputIsNamedAndNothingStarts) {
  const std::string good(64, 'a');
  const auto error_of = [&](const LookupServerOptions& options) {
    ServerProcess server(options);
    EXPECT_EQ(server.wait_for_exit_code(), 2);
    EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/server"));
    return server.errors();
  };
  EXPECT_THAT(error_of(options(good + "\n" + good + "\nxyz\n")), HasSubstr("preload, line 3:"));
  EXPECT_THAT(error_of(options(good + "a")), HasSubstr("line 1: not a block hash"));
  EXPECT_THAT(error_of(options(good + good)), HasSubstr("line 1: not a block hash"));
  EXPECT_THAT(error_of({.endpoint = dir_.endpoint("server"), .preload_path = "/no/file"}),
              HasSubstr("cannot read the preload file /no/file"));
  EXPECT_THAT(error_of({.endpoint = dir_.endpoint("server"), .preload_path = dir_.path()}),
              HasSubstr("cannot read the preload file " + dir_.path()));
  LookupServerOptions unwritable = options(good);
  unwritable.endpoint = "ipc:///proc/newmoon/server";
  EXPECT_THAT(error_of(unwritable), HasSubstr("/proc/newmoon"));
  LookupServerOptions tcp = options(good);
  tcp.endpoint = "tcp://127.0.0.1:9";
  EXPECT_THAT(error_of(tcp), HasSubstr("must be ipc://PATH"));
}

TEST(BenchLookupTest, RowsAreThereForHitsAndMisses) {
  const std::array<int, 1> blocks = {8};
  const auto rows = bench_lookup(blocks);
  ASSERT_TRUE(rows) << rows.error().message;
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_EQ(rows->at(0).case_name, "all_hits");
  EXPECT_EQ(rows->at(1).case_name, "all_misses");
  for (const LookupBenchRow& row : *rows) {
    EXPECT_EQ(row.blocks, 8);
    EXPECT_GT(row.p50_us, 0);
    EXPECT_LE(row.p50_us, row.p99_us);
  }
}

}  // namespace
}  // namespace newmoon
