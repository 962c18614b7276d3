// Where Mooncake's wheel lies unpacked: the folder that holds `mooncake/` (store.so,
// mooncake_master) and `mooncake_transfer_engine_non_cuda.libs/`.
#pragma once

#include <string>

#include "base/result.h"

namespace newmoon {

// $NEWMOON_MOONCAKE_DIR if it is set, else where `./dev setup` put it.
// kUnavailable: the wheel is not there; names the folder.
Result<std::string> mooncake_wheel_folder();

}  // namespace newmoon
