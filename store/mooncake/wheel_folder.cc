#include "store/mooncake/wheel_folder.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace newmoon {

Result<std::string> mooncake_wheel_folder() {
  const char* chosen = std::getenv("NEWMOON_MOONCAKE_DIR");
  const bool is_chosen = chosen != nullptr && *chosen != '\0';
  std::string folder = is_chosen ? chosen : NEWMOON_MOONCAKE_FOLDER;
  std::error_code ignored;
  if (std::filesystem::exists(folder + "/mooncake/store.so", ignored)) return folder;
  return fail(Code::kUnavailable,
              "Mooncake's wheel is not in " + folder + " (no mooncake/store.so); " +
                  (is_chosen ? "NEWMOON_MOONCAKE_DIR must name the folder it was unpacked into"
                             : "run ./dev setup or set NEWMOON_MOONCAKE_DIR"));
}

}  // namespace newmoon
