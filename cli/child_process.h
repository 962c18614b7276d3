// A child process spoken to in JSON lines: one request line on its stdin, one reply
// line on its stdout. How `newmoon rollout` drives its engine processes.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ipc_path.h"
#include "base/result.h"

namespace newmoon {

// Owns the process: the destructor closes its stdin, gives it five seconds to end
// and then kills it. One thread.
class ChildProcess {
 public:
  // `name` stands in error messages. argv[0] is the program's path. `stop_fd` ends
  // every receive() once it is readable; -1: nothing does.
  static Result<ChildProcess> start(std::string name, const std::vector<std::string>& argv,
                                    int stop_fd = -1);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }

  // send() and receive() also end once the process `pid` has, which the child cannot do
  // without: "`name` has ended". It must not have been waited for yet.
  Status depend_on(pid_t pid, std::string name);

  // send() and receive() let several children work at once; call() is both.
  // kDeadline: the child has not read enough of what it was sent for `timeout`, and what
  // has come through of this request is no whole one: do not use it any more.
  // kUnavailable: as receive().
  Status send(const nlohmann::json& request, Duration timeout = kSendTimeout);
  // The reply; kDeadline after `timeout`; kUnavailable if the child or what it depends on
  // ended or a signal came; the child's own {"error": {"code", "message"}} as an Error.
  Result<nlohmann::json> receive(Duration timeout);
  Result<nlohmann::json> call(const nlohmann::json& request, Duration timeout);

 private:
  static constexpr Duration kSendTimeout = std::chrono::seconds(60);

  // Until the child's end of a pipe is ready.
  Status wait_for(int fd, short events, Time deadline);

  ChildProcess(std::string name, pid_t pid, int to_child, int from_child, int stop_fd)
      : name_(std::move(name)),
        pid_(pid),
        to_child_(to_child),
        from_child_(from_child),
        stop_fd_(stop_fd) {}

  std::string name_;
  pid_t pid_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
  int stop_fd_ = -1;  // not owned
  UniqueFd dependency_end_;
  std::string dependency_;
  std::string unread_;
};

// A message as it goes through the pipe. Text that is not UTF-8 (a path, say) is
// replaced, not refused: errors that name it must arrive too.
std::string to_line(const nlohmann::json& message);

// The path of the running program, to start it again in another role.
std::string own_program_path();

}  // namespace newmoon
