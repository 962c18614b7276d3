// A mooncake_master of our own, for commands that need one for as long as they run and for
// tests that kill it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/temp_folder.h"

namespace newmoon {

struct MooncakeMasterOptions {
  std::uint16_t rpc_port = 0;      // 0: a free one
  std::uint16_t metrics_port = 0;  // 0: a free one
  std::vector<std::string> flags;  // further ones, e.g. "--client_ttl=2"
  Duration start_timeout = std::chrono::seconds(10);
};

// Listens on 127.0.0.1 only. Killed with its owner (it keeps nothing that an orderly end
// would save), and by the kernel if the thread that started it ends: a crash, a kill -9.
// It is in a process group of its own, so that a terminal's interrupt reaches its owner
// first. One thread.
class MooncakeMaster {
 public:
  // The wheel's mooncake_master (mooncake_wheel_folder()), once it answers on both ports.
  // kUnavailable: the wheel is not there, a port is taken, or the master ended; with the
  // last line of its log. kDeadline: it did not answer in time.
  static Result<MooncakeMaster> start(Clock& clock, MooncakeMasterOptions options = {});
  MooncakeMaster(MooncakeMaster&& other) noexcept;
  MooncakeMaster& operator=(MooncakeMaster&&) = delete;
  ~MooncakeMaster();

  // mooncake://127.0.0.1:PORT?metrics_port=PORT
  std::string url() const;
  std::string address() const;  // HOST:PORT
  std::uint16_t rpc_port() const { return options_.rpc_port; }
  std::uint16_t metrics_port() const { return options_.metrics_port; }
  pid_t pid() const { return pid_; }  // -1: none runs
  std::string log_path() const { return folder_.path() + "/mooncake_master.log"; }

  // kill -9, and waits until it is gone: its ports refuse connections then.
  void kill();
  // A new master, which knows nothing of the old one's keys, on the same ports. Errors as
  // of start(). Requires that none runs.
  Status restart();

 private:
  MooncakeMaster(Clock& clock, MooncakeMasterOptions options, std::string program,
                 TempFolder folder);
  std::vector<std::string> arguments() const;
  Status spawn();
  Status wait_until_it_answers();
  bool has_ended();  // reaps it
  std::string last_log_line() const;

  Clock& clock_;
  MooncakeMasterOptions options_;
  std::string program_;
  TempFolder folder_;
  pid_t pid_ = -1;
};

}  // namespace newmoon
