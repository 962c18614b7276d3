// A mooncake_master for tests: what it waits for by default in tens of seconds or minutes
// happens within seconds.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "store/mooncake/master_process.h"

namespace newmoon::testing {

// Leases of keys found or read, milliseconds; after that an object may be evicted or
// removed without force.
inline constexpr int kTestLeaseMs = 200;
// A put that was started and not ended: others may start it anew after the first time; its
// memory comes back after the second.
inline constexpr int kTestDiscardSeconds = 1;
inline constexpr int kTestReleaseSeconds = 2;
// A client that is silent for so long is dead: its segment and what lies there are gone.
inline constexpr int kTestClientSeconds = 3;

// Of a master and of a client: on a busy machine the wheel alone takes seconds to load.
inline constexpr Duration kTestStartTimeout = std::chrono::seconds(60);

// `flags` come after those above, and so count more.
inline MooncakeMaster start_mooncake_master(Clock& clock, std::vector<std::string> flags = {}) {
  MooncakeMasterOptions options;
  options.start_timeout = kTestStartTimeout;
  options.flags = {
      "--default_kv_lease_ttl=" + std::to_string(kTestLeaseMs),
      "--put_start_discard_timeout_sec=" + std::to_string(kTestDiscardSeconds),
      "--put_start_release_timeout_sec=" + std::to_string(kTestReleaseSeconds),
      "--client_ttl=" + std::to_string(kTestClientSeconds),
  };
  options.flags.insert(options.flags.end(), flags.begin(), flags.end());
  Result<MooncakeMaster> master = MooncakeMaster::start(clock, std::move(options));
  if (!master) throw std::runtime_error(to_string(master.error()));  // ends the test, failed
  return std::move(*master);
}

}  // namespace newmoon::testing
