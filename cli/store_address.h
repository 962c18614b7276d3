// The store that a command's --store names.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "store/mooncake/master_process.h"

namespace newmoon {

struct StoreAddress {
  std::string url;                           // of store/make_store.h
  std::unique_ptr<MooncakeMaster> master{};  // what "mooncake" stands for; ends with this
};

// "mooncake" starts a master of the command's own, with `own_options` ("&option=value...",
// store/mooncake/config.h) behind its URL; all else is a URL already. `clock` outlives the
// master. Errors as of MooncakeMaster::start().
Result<StoreAddress> find_store(const std::string& store, const std::string& own_options,
                                Clock& clock);

}  // namespace newmoon
