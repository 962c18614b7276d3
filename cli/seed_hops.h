// The hops of the reset cascade, by upstream's name and ours, and how each shows in
// the trace.
#pragma once

#include <cstddef>
#include <vector>

#include "admin/protocol.h"
#include "cli/seed_report.h"
#include "cli/seed_trace.h"

namespace newmoon {

// Prints a line a hop and a line a message; returns how many hops of the cascade were
// seen, each behind the one before.
std::size_t print_hops(const std::vector<SeedTrace::Line>& lines, ResetMode mode,
                       SeedReport& report);
// How many print_hops() should see.
std::size_t hop_count(ResetMode mode);
// How many messages went either way.
std::size_t count_messages(const std::vector<SeedTrace::Line>& lines);

}  // namespace newmoon
