#include "cli/seed_hops.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>

namespace newmoon {
namespace {

struct Hop {
  std::string_view component;
  std::string_view contains;  // of the line's text
  std::string_view upstream;  // vLLM's name; "": it has none
  std::string_view ours;
  bool remove_all_only = false;
};

// In the order of the cascade.
constexpr std::array<Hop, 14> kHops = {{
    {"engine_core", "pause_generation(", "EngineCore.pause_scheduler",
     "EngineCore::pause_generation"},
    {"engine_core", "reset_caches(", "EngineCore._reset_caches", "EngineCore::reset_caches"},
    {"scheduler", "reset_prefix_cache(", "Scheduler.reset_prefix_cache",
     "Scheduler::reset_prefix_cache"},
    {"scheduler", "fence: ", "", "Fence::reset"},
    {"block_pool", "reset: ", "BlockPool.reset_prefix_cache", "BlockPool::reset"},
    {"store_scheduler", "on_fence: ", "", "StoreScheduler::on_fence"},
    {"scheduler", "reset_connector_cache", "Scheduler.reset_connector_cache",
     "Scheduler::reset_connector_cache"},
    {"store_connector", "reset_cache: ", "MooncakeStoreConnector.reset_cache",
     "StoreConnector::reset_cache"},
    {"store_scheduler", "reset_store(", "MooncakeStoreScheduler.reset_store",
     "StoreScheduler::reset_store"},
    {"lookup-client", "reset(", "LookupKeyClient.reset", "LookupKeyClient::reset"},
    {"lookup-server", "reset: ", "LookupKeyServer.process_request", "LookupKeyServer::handle"},
    {"store_worker", ": reset: ", "", "StoreWorker::reset"},
    {"store_worker", ": drain: ", "kv_send_thread.request_queue.join", "StoreWorker::when_drained",
     true},
    {"store_worker", ": remove_all", "store.remove_all(force=True)", "StoreWorker::remove_all",
     true},
}};

bool shows(const SeedTrace::Line& line, const Hop& hop) {
  return line.component == hop.component && line.text.find(hop.contains) != std::string::npos;
}

void print_row(std::string_view upstream, std::string_view ours, std::string_view said) {
  std::printf("  %-35.*s %-34.*s %.*s\n", static_cast<int>(upstream.size()), upstream.data(),
              static_cast<int>(ours.size()), ours.data(), static_cast<int>(said.size()),
              said.data());
}

}  // namespace

std::size_t hop_count(ResetMode mode) {
  return static_cast<std::size_t>(std::ranges::count_if(kHops, [&](const Hop& hop) {
    return mode == ResetMode::kRemoveAll || !hop.remove_all_only;
  }));
}

std::size_t print_hops(const std::vector<SeedTrace::Line>& lines, ResetMode mode,
                       SeedReport& report) {
  std::printf("\n");
  print_row("vLLM", "Newmoon", "says");
  std::size_t next = 0;  // in kHops
  std::size_t seen = 0;
  for (const SeedTrace::Line& line : lines) {
    const auto hop =
        std::ranges::find_if(kHops, [&](const Hop& each) { return shows(line, each); });
    if (hop == kHops.end()) {
      report.say("  " + std::string(line.component == "wire" ? "" : line.component + ": ") +
                 line.text);
      continue;
    }
    print_row(hop->upstream.empty() ? "-" : hop->upstream, hop->ours, line.text);
    if (next < hop_count(mode) && shows(line, kHops[next])) {
      ++next;
      ++seen;
    }
  }
  return seen;
}

std::size_t count_messages(const std::vector<SeedTrace::Line>& lines) {
  return static_cast<std::size_t>(
      std::ranges::count(lines, std::string("wire"), &SeedTrace::Line::component));
}

}  // namespace newmoon
