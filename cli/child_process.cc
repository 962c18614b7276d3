#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

extern char** environ;

namespace newmoon {
namespace {

using Json = nlohmann::json;

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return fail(Code::kUnavailable, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  return Pipe{ends[0], ends[1]};
}

Result<pid_t> spawn(const std::vector<std::string>& argv, int child_stdin, int child_stdout) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_stdin, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_stdout, STDOUT_FILENO);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, argv[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return fail(Code::kUnavailable, "cannot start " + argv[0] + ": " + std::strerror(error));
  }
  return pid;
}

// True once the process has been reaped.
bool wait_for_end(pid_t pid, Duration timeout) {
  SystemClock clock;
  const Time deadline = clock.now() + timeout;
  while (waitpid(pid, nullptr, WNOHANG) == 0) {
    if (clock.now() >= deadline) return false;
    clock.sleep_until(clock.now() + std::chrono::milliseconds(10));
  }
  return true;
}

Result<Json> parse_reply(const std::string& name, const std::string& line) {
  Json reply = Json::parse(line, nullptr, false);
  if (!reply.is_object()) {
    return fail(Code::kInternal, name + " answered something that is no JSON object: " + line);
  }
  if (const auto error = reply.find("error"); error != reply.end()) {
    return fail(code_from_wire(error->value("code", "internal")),
                name + ": " + error->value("message", "no message"));
  }
  return reply;
}

}  // namespace

Result<ChildProcess> ChildProcess::start(std::string name, const std::vector<std::string>& argv,
                                         int stop_fd) {
  // A child that died must show as an error of write(), not end this process.
  signal(SIGPIPE, SIG_IGN);
  const Result<Pipe> requests = make_pipe();
  if (!requests) return std::unexpected(requests.error());
  const Result<Pipe> replies = make_pipe();
  if (!replies) {
    close(requests->read_end);
    close(requests->write_end);
    return std::unexpected(replies.error());
  }
  const Result<pid_t> pid = spawn(argv, requests->read_end, replies->write_end);
  close(requests->read_end);
  close(replies->write_end);
  if (!pid) {
    close(requests->write_end);
    close(replies->read_end);
    return std::unexpected(pid.error());
  }
  // A child that does not read must show as a deadline, not hold us up for ever.
  fcntl(requests->write_end, F_SETFL, O_NONBLOCK);
  return ChildProcess(std::move(name), *pid, requests->write_end, replies->read_end, stop_fd);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      to_child_(std::exchange(other.to_child_, -1)),
      from_child_(std::exchange(other.from_child_, -1)),
      stop_fd_(other.stop_fd_),
      dependency_end_(std::move(other.dependency_end_)),
      dependency_(std::move(other.dependency_)),
      unread_(std::move(other.unread_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  close(to_child_);
  if (!wait_for_end(pid_, std::chrono::seconds(5))) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(from_child_);
}

Status ChildProcess::depend_on(pid_t pid, std::string name) {
  dependency_ = std::move(name);
  dependency_end_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (dependency_end_) return {};
  return fail(Code::kUnavailable, "cannot watch " + dependency_ + ": " + std::strerror(errno));
}

Status ChildProcess::wait_for(int fd, short events, Time deadline) {
  SystemClock clock;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock.now());
    pollfd sources[] = {{fd, events, 0}, {stop_fd_, POLLIN, 0}, {dependency_end_.get(), POLLIN, 0}};
    if (poll(sources, 3, static_cast<int>(std::max<long>(left.count(), 0))) > 0) {
      if (sources[1].revents != 0) return fail(Code::kUnavailable, "stopped by a signal");
      if (sources[0].revents != 0) return {};
      return fail(Code::kUnavailable, dependency_ + " has ended");
    }
    if (left.count() <= 0) return fail(Code::kDeadline, name_ + " did not answer in time");
  }
}

Status ChildProcess::send(const Json& request, Duration timeout) {
  const std::string line = to_line(request);
  const Time deadline = SystemClock().now() + timeout;
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = write(to_child_, line.data() + sent, line.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      if (const Status ready = wait_for(to_child_, POLLOUT, deadline); !ready) return ready;
      continue;
    }
    if (n < 0) return fail(Code::kUnavailable, name_ + " has ended: " + std::strerror(errno));
    sent += static_cast<std::size_t>(n);
  }
  return {};
}

Result<Json> ChildProcess::receive(Duration timeout) {
  const Time deadline = SystemClock().now() + timeout;
  while (true) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      const std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return parse_reply(name_, line);
    }
    if (const Status ready = wait_for(from_child_, POLLIN, deadline); !ready) {
      return std::unexpected(ready.error());
    }
    std::array<char, 65536> buffer;
    const ssize_t n = read(from_child_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::kUnavailable, name_ + " has ended; its reason is on stderr");
    unread_.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

Result<Json> ChildProcess::call(const Json& request, Duration timeout) {
  if (const Status sent = send(request, timeout); !sent) return std::unexpected(sent.error());
  return receive(timeout);
}

std::string to_line(const Json& message) {
  return message.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string own_program_path() {
  std::array<char, 4096> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return n > 0 ? std::string(path.data(), static_cast<std::size_t>(n)) : "newmoon";
}

}  // namespace newmoon
