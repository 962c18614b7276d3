// The backends that the conformance tests run on, and the fixture of those tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/temp_dir.h"
#include "store/circuit_breaker_store.h"
#include "store/faulty_store.h"
#include "store/ipc_server.h"
#include "store/ipc_store.h"
#include "store/make_store.h"
#include "store/memory_store.h"
#include "store/testing/mooncake_master.h"

namespace newmoon::testing {

// What a backend needs to exist, and the backend. Destroyed in reverse order.
struct StoreParts {
  std::vector<std::shared_ptr<void>> parts;
  KvStore* store = nullptr;

  template <class T, class... Args>
  T& add(Args&&... args) {
    auto part = std::make_shared<T>(std::forward<Args>(args)...);
    parts.push_back(part);
    return *part;
  }
  StoreParts() = default;
  StoreParts(StoreParts&&) = default;
  ~StoreParts() {
    while (!parts.empty()) parts.pop_back();
  }
};

struct Backend {
  const char* name;
  std::function<StoreParts(std::uint64_t budget_bytes)> make;
};

inline StoreParts make_memory(std::uint64_t budget_bytes) {
  StoreParts setup;
  auto& clock = setup.add<SystemClock>();
  auto& executor = setup.add<ThreadExecutor>("store-free");
  const MemoryStoreOptions options{.budget_bytes = budget_bytes};
  setup.store = &setup.add<MemoryStore>(options, clock, executor);
  return setup;
}

// A wrapper with nothing to do, and one with a rule that never comes to it.
inline StoreParts make_faulty(std::uint64_t budget_bytes) {
  StoreParts setup = make_memory(budget_bytes);
  auto& clock = setup.add<SystemClock>();
  auto& random = setup.add<SeededRandom>(1);
  std::vector<FaultRule> rules = *parse_fault_rules("put:rank=77:fail=busy,get:nth=99999:drop");
  setup.store = &setup.add<FaultyStore>(*setup.store, std::move(rules), clock, random);
  return setup;
}

// Server and client in one process, over a real socket.
inline StoreParts make_ipc(std::uint64_t budget_bytes) {
  StoreParts setup = make_memory(budget_bytes);
  const auto& directory = setup.add<TempDir>();
  auto server = StoreServer::start(directory.endpoint("store"), *setup.store);
  EXPECT_TRUE(server) << server.error().message;
  setup.parts.push_back(std::move(*server));
  auto client = IpcStore::open(directory.endpoint("store"), setup.add<SystemClock>(),
                               {.timeout = std::chrono::seconds(60)});
  EXPECT_TRUE(client) << client.error().message;
  // As make_store() has it, but for the pings, which depend on time.
  setup.store = &setup.add<CircuitBreakerStore>(std::move(*client), "the store server",
                                                setup.add<SystemClock>());
  return setup;
}

// The real one. All tests of a program share a master, which each finds empty. What this
// process lends is the whole store: the budget, of which Mooncake wants 16 MiB at least.
inline StoreParts make_mooncake(std::uint64_t budget_bytes) {
  static SystemClock clock;
  static MooncakeMaster master = start_mooncake_master(clock);
  constexpr std::uint64_t kSegmentBytesMin = 16 << 20;
  StoreParts setup;
  auto& executor = setup.add<InlineExecutor>();
  const std::string lent = std::to_string(std::max(budget_bytes, kSegmentBytesMin));
  auto store = make_store(master.url() + "&local_buffer_size=64mb&global_segment_size=" + lent,
                          {.timeout = std::chrono::seconds(20)}, clock, executor);
  if (!store) throw std::runtime_error(to_string(store.error()));  // ends the test, failed
  setup.store = store->get();
  setup.parts.push_back(std::move(*store));
  const Result<std::uint64_t> emptied = setup.store->remove_all();
  EXPECT_TRUE(emptied) << to_string(emptied.error());
  return setup;
}

class StoreConformance : public ::testing::TestWithParam<Backend> {
 protected:
  static constexpr std::uint64_t kBudget = 16 << 20;

  // Again from nothing, with another budget.
  void restart(std::uint64_t budget_bytes) {
    setup_.reset();
    setup_ = std::make_unique<StoreParts>(GetParam().make(budget_bytes));
  }
  KvStore& store() { return *setup_->store; }

 private:
  std::unique_ptr<StoreParts> setup_ = std::make_unique<StoreParts>(GetParam().make(kBudget));
};

inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }
inline std::string name_of_backend(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

inline Code code_of(const auto& result) { return result ? Code::kInternal : result.error().code; }

}  // namespace newmoon::testing
