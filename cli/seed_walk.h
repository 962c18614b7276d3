// The parts of `newmoon seed`. Each returns an error only if an engine cannot be
// started; what does not hold is a failed check of the report.
#pragma once

#include <cstddef>

#include "cli/seed_report.h"
#include "cli/seed_store.h"
#include "cli/seed_trace.h"

namespace newmoon {

struct SeedFigures {
  std::size_t hops = 0;
  std::size_t messages = 0;
};

// The cascade hop by hop, in reset_mode remove_all and with the default fence.
Status walk_cascade(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report,
                    SeedFigures& figures);

// What the seed's tests and its review name as failures.
Status walk_failures(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report);

// A Mooncake master that is killed, and comes back. REQUIRES: store.master().
Status walk_dead_master(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report);

}  // namespace newmoon
