#include "cli/store_address.h"

#include <utility>

namespace newmoon {

Result<StoreAddress> find_store(const std::string& store, const std::string& own_options,
                                Clock& clock) {
  if (store != "mooncake") return StoreAddress{.url = store};
  Result<MooncakeMaster> master = MooncakeMaster::start(clock);
  if (!master) return std::unexpected(master.error());
  std::string url = master->url() + own_options;
  return StoreAddress{.url = std::move(url),
                      .master = std::make_unique<MooncakeMaster>(std::move(*master))};
}

}  // namespace newmoon
