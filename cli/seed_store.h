// The store under `newmoon seed`, as its --store says.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/executor.h"
#include "cli/store_address.h"
#include "store/kv_store.h"

namespace newmoon {

// One for all engines of a walk, one after the other: emptied before each. One thread, but
// for the store itself.
class SeedStore {
 public:
  // "memory"; "mooncake": a real one, with a master of its own that ends with this;
  // "mooncake://...": one that runs. As the walk empties the store, one that holds anything,
  // whoever's it is, is refused.
  // kBadRequest, kUnavailable: one line that says what to do.
  static Result<std::unique_ptr<SeedStore>> open(const std::string& store);

  KvStore& store() { return *store_; }
  MooncakeMaster* master() { return address_.master.get(); }  // one that may be killed
  // Removes what the engine before left.
  Status empty();

 private:
  SeedStore() = default;

  SystemClock clock_;
  ThreadExecutor freeing_{"nm-free"};
  StoreAddress address_;
  std::unique_ptr<KvStore> store_;
};

}  // namespace newmoon
