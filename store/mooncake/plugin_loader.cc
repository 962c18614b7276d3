#include "store/mooncake/plugin_loader.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>

#include "base/log.h"
#include "store/mooncake/wheel_folder.h"

namespace newmoon {
namespace {

constexpr const char* kPythonLibrary = "libpython3.11.so.1.0";

void log_wheel_line(int, std::string_view line) { log(LogLevel::kDebug, "mooncake", line); }

std::unexpected<Error> cannot_load(const std::string& what, const std::string& remedy) {
  const char* reason = dlerror();
  return fail(Code::kUnavailable, "mooncake: cannot load " + what + ": " +
                                      (reason == nullptr ? "" : reason) + "; " + remedy);
}

// RTLD_GLOBAL: the wheel's extension modules take Python's symbols from there.
Status load_python() {
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr) return {};  // this program has one
  const char* chosen = std::getenv("NEWMOON_LIBPYTHON");
  const std::string library = chosen != nullptr && *chosen != '\0' ? chosen : kPythonLibrary;
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  return cannot_load("Python 3.11",
                     "run ./dev setup, install the package libpython3.11, or set "
                     "NEWMOON_LIBPYTHON to a libpython3.11.so");
}

// Where this code was loaded from: the program, or the Python extension that it is part of.
std::filesystem::path own_file() {
  Dl_info info;
  void* map = nullptr;
  if (dladdr1(kMooncakePluginSymbol, &info, &map, RTLD_DL_LINKMAP) != 0 && map != nullptr) {
    const std::string name = static_cast<const link_map*>(map)->l_name;
    if (!name.empty()) return name;  // the program itself has none
  }
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

Result<MooncakePluginFunction> load_plugin() {
  const std::string path = (own_file().parent_path() / "newmoon_mooncake.so").string();
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* function = plugin == nullptr ? nullptr : dlsym(plugin, kMooncakePluginSymbol);
  if (function == nullptr) {
    return cannot_load("its plugin", "it belongs beside the program or newmoon/_core");
  }
  return reinterpret_cast<MooncakePluginFunction>(function);
}

}  // namespace

Result<std::unique_ptr<MooncakeClient>> load_mooncake_client() {
  const Result<std::string> wheel = mooncake_wheel_folder();
  const bool in_python = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
  // An interpreter that is here already may have the wheel installed.
  if (!wheel && !in_python) return std::unexpected(wheel.error());
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Status python = load_python(); !python) return std::unexpected(python.error());
  const Result<MooncakePluginFunction> make = load_plugin();
  if (!make) return std::unexpected(make.error());
  std::unique_ptr<MooncakeClient> client;
  Error error;
  if (!(*make)(wheel.value_or(""), log_wheel_line, client, error)) return std::unexpected(error);
  return client;
}

}  // namespace newmoon
