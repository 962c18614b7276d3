#include "store/mooncake/master_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/ipc_path.h"
#include "store/mooncake/wheel_folder.h"

namespace newmoon {
namespace {

constexpr Duration kPoll = std::chrono::milliseconds(5);

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd tcp_socket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

bool is_answered(std::uint16_t port) {
  const UniqueFd fd = tcp_socket();
  const sockaddr_in address = loopback(port);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// A socket bound to `port` (0: a free one, which *port becomes); none if it is taken.
// While it lives nobody else is given that port.
UniqueFd claim_port(std::uint16_t* port) {
  UniqueFd fd = tcp_socket();
  const int on = 1;  // connections of a dead master that still linger do not count
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = loopback(*port);
  socklen_t size = sizeof address;
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return {};
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin_port);
  return fd;
}

struct Ports {
  UniqueFd rpc, metrics;
};

Result<Ports> claim_ports(MooncakeMasterOptions& options) {
  Ports ports;
  ports.rpc = claim_port(&options.rpc_port);
  ports.metrics = claim_port(&options.metrics_port);
  if (ports.rpc && ports.metrics) return ports;
  const std::uint16_t taken = ports.rpc ? options.metrics_port : options.rpc_port;
  return fail(Code::kUnavailable,
              "port " + std::to_string(taken) +
                  " of 127.0.0.1 is taken; is another mooncake_master running?");
}

// In the child, between fork and exec: only what is safe there.
[[noreturn]] void become(const char* program, char* const* arguments, pid_t parent, int log_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execv(program, arguments);
  _exit(127);
}

}  // namespace

MooncakeMaster::MooncakeMaster(Clock& clock, MooncakeMasterOptions options, std::string program,
                               TempFolder folder)
    : clock_(clock),
      options_(std::move(options)),
      program_(std::move(program)),
      folder_(std::move(folder)) {}

MooncakeMaster::MooncakeMaster(MooncakeMaster&& other) noexcept
    : clock_(other.clock_),
      options_(std::move(other.options_)),
      program_(std::move(other.program_)),
      folder_(std::move(other.folder_)),
      pid_(std::exchange(other.pid_, -1)) {}

MooncakeMaster::~MooncakeMaster() { kill(); }

Result<MooncakeMaster> MooncakeMaster::start(Clock& clock, MooncakeMasterOptions options) {
  Result<std::string> wheel = mooncake_wheel_folder();
  if (!wheel) return std::unexpected(wheel.error());
  Result<TempFolder> folder = TempFolder::create();
  if (!folder) return std::unexpected(folder.error());
  MooncakeMaster master(clock, std::move(options), *wheel + "/mooncake/mooncake_master",
                        std::move(*folder));
  if (const Status started = master.restart(); !started) return std::unexpected(started.error());
  return master;
}

std::string MooncakeMaster::address() const {
  return "127.0.0.1:" + std::to_string(options_.rpc_port);
}

std::string MooncakeMaster::url() const {
  return "mooncake://" + address() + "?metrics_port=" + std::to_string(options_.metrics_port);
}

std::vector<std::string> MooncakeMaster::arguments() const {
  std::vector<std::string> all = {program_,
                                  "--logtostderr",
                                  "--rpc_address=127.0.0.1",
                                  "--rpc_port=" + std::to_string(options_.rpc_port),
                                  "--metrics_host=127.0.0.1",
                                  "--metrics_port=" + std::to_string(options_.metrics_port)};
  all.insert(all.end(), options_.flags.begin(), options_.flags.end());
  return all;
}

Status MooncakeMaster::restart() {
  // Held until the master has them, which it can bind all the same: it, too, asks for
  // SO_REUSEADDR, and nobody listens on ours.
  const Result<Ports> ports = claim_ports(options_);
  if (!ports) return std::unexpected(ports.error());
  if (const Status spawned = spawn(); !spawned) return spawned;
  const Status answers = wait_until_it_answers();
  if (!answers) kill();
  return answers;
}

Status MooncakeMaster::spawn() {
  const UniqueFd log_fd(open(log_path().c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
  if (!log_fd) return fail(Code::kUnavailable, "cannot write " + log_path());
  const std::vector<std::string> all = arguments();
  std::vector<char*> pointers;
  for (const std::string& argument : all) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become(program_.c_str(), pointers.data(), parent, log_fd.get());
  if (child < 0) {
    return fail(Code::kUnavailable, std::string("cannot start a process: ") + strerror(errno));
  }
  pid_ = child;
  return {};
}

Status MooncakeMaster::wait_until_it_answers() {
  const Time deadline = clock_.now() + options_.start_timeout;
  while (!is_answered(options_.rpc_port) || !is_answered(options_.metrics_port)) {
    if (has_ended()) {
      return fail(Code::kUnavailable, program_ + " ended at its start: " + last_log_line());
    }
    if (clock_.now() >= deadline) {
      return fail(Code::kDeadline, program_ + " does not answer on " + address());
    }
    clock_.sleep_until(clock_.now() + kPoll);
  }
  return {};
}

bool MooncakeMaster::has_ended() {
  if (pid_ >= 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

void MooncakeMaster::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string MooncakeMaster::last_log_line() const {
  std::ifstream file(log_path());
  std::string last = "nothing in its log";
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace newmoon
