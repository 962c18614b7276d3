#include "store/mooncake/plugin/wheel_log.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstring>
#include <ctime>
#include <string>

namespace newmoon {
namespace {

// As glog 0.3 and 0.4 (libglog.so.0) declare google::LogSink: the order of the virtual
// functions is what counts.
class GlogSink {
 public:
  virtual ~GlogSink() = default;
  virtual void send(int severity, const char* full_filename, const char* base_filename, int line,
                    const std::tm* time, const char* message, std::size_t bytes) = 0;
  virtual void WaitTillSent() {}
};

class ForwardingSink final : public GlogSink {
 public:
  explicit ForwardingSink(MooncakeLog log) : log_(log) {}
  void send(int severity, const char*, const char* base_filename, int line, const std::tm*,
            const char* message, std::size_t bytes) override {
    log_(severity, std::string(base_filename) + ":" + std::to_string(line) + " " +
                       std::string(message, bytes));
  }

 private:
  const MooncakeLog log_;
};

// The wheel's libraries carry a hash in their names: libglog-6ed04f2c.so.0.0.0.
int is_wheels_glog(dl_phdr_info* info, std::size_t, void* path) {
  const char* found = std::strstr(info->dlpi_name, "/libglog-");
  if (found == nullptr || std::strstr(found, ".so.0") == nullptr) return 0;
  *static_cast<std::string*>(path) = info->dlpi_name;
  return 1;
}

}  // namespace

bool redirect_wheel_log(MooncakeLog log) {
  std::string path;
  if (dl_iterate_phdr(is_wheels_glog, &path) == 0) return false;
  void* glog = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
  if (glog == nullptr) return false;
  const auto initialize =
      reinterpret_cast<void (*)(const char*)>(dlsym(glog, "_ZN6google17InitGoogleLoggingEPKc"));
  const auto set_log_destination = reinterpret_cast<void (*)(int, const char*)>(
      dlsym(glog, "_ZN6google17SetLogDestinationEiPKc"));
  const auto add_sink =
      reinterpret_cast<void (*)(GlogSink*)>(dlsym(glog, "_ZN6google10AddLogSinkEPNS_7LogSinkE"));
  auto* stderr_threshold = static_cast<int*>(dlsym(glog, "_ZN3fLI21FLAGS_stderrthresholdE"));
  auto* log_to_stderr = static_cast<bool*>(dlsym(glog, "_ZN3fLB17FLAGS_logtostderrE"));
  if (initialize == nullptr || set_log_destination == nullptr || add_sink == nullptr ||
      stderr_threshold == nullptr || log_to_stderr == nullptr) {
    return false;
  }
  constexpr int kSeverities = 4;
  // Until it is initialized glog writes to descriptor 2 whatever its flags say.
  initialize("newmoon");
  *log_to_stderr = false;
  *stderr_threshold = kSeverities;
  for (int severity = 0; severity < kSeverities; ++severity) set_log_destination(severity, "");
  static ForwardingSink sink(log);  // never removed: the wheel's threads outlive everything
  add_sink(&sink);
  return true;
}

}  // namespace newmoon
