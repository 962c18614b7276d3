#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/rollout.h"

namespace newmoon {

bool RolloutReport::external_hits_everywhere() const {
  for (const CycleReport& cycle : cycles) {
    if (cycle.external_hit_tokens == 0) return false;
  }
  return !cycles.empty();
}

bool RolloutReport::return_hits() const {
  std::map<std::string, int> times;
  for (const CycleReport& cycle : cycles) {
    if (times[cycle.weights]++ > 0 && cycle.first_engine_external_hit_tokens == 0) return false;
  }
  return true;
}

bool RolloutReport::rolling_hits() const {
  if (!rolling) return true;
  return std::all_of(cycles.begin() + 1, cycles.end(), [](const CycleReport& cycle) {
    return cycle.two_identity_requests > 0 && cycle.second_engine_external_hit_tokens > 0;
  });
}

namespace {

std::string verdict_of(const RolloutReport& report) {
  if (!report.pass()) return "fail";
  return report.verified ? "pass" : "not verified";
}

}  // namespace

bool RolloutReport::pass() const {
  const bool hits =
      !hits_required || (external_hits_everywhere() && return_hits() && rolling_hits());
  return differing_requests.empty() && hits && (!verified || compared_requests > 0);
}

void print_report(const RolloutReport& report) {
  std::printf("%-3s %-8s %-6s %7s %7s %8s %8s %9s %7s %7s %9s %9s %9s %6s\n", "", "weights",
              "pause", "prompt", "local", "external", "computed", "first-use", "second", "two-ids",
              "pause ms", "update ms", "reset ms", "tok/s");
  int number = 0;
  for (const CycleReport& cycle : report.cycles) {
    std::printf("%-3d %-8s %-6s %7lu %7lu %8lu %8lu %9lu %7lu %7lu %9.2f %9.1f %9.3f %6.1f\n",
                ++number, cycle.weights.c_str(),
                cycle.pause_mode.empty() ? "-" : cycle.pause_mode.c_str(), cycle.prompt_tokens,
                cycle.local_hit_tokens, cycle.external_hit_tokens, cycle.computed_tokens,
                cycle.first_use_external_hit_tokens, cycle.second_engine_external_hit_tokens,
                cycle.two_identity_requests, cycle.pause_ms, cycle.update_ms, cycle.reset_ms,
                static_cast<double>(cycle.output_tokens) / cycle.seconds);
    if (!cycle.reset_steps_ms.is_null()) {
      std::printf("    reset by step, ms: %s\n", cycle.reset_steps_ms.dump().c_str());
    }
  }
  for (const std::string& id : report.differing_requests) {
    std::printf("differs from a cold engine: %s\n", id.c_str());
  }
  if (!report.external_hits_everywhere()) std::printf("a cycle had no external hit\n");
  if (!report.return_hits()) std::printf("a return to earlier weights found nothing cached\n");
  if (!report.rolling_hits()) {
    std::printf("a rolling update had no two identities, or its second engine found nothing\n");
  }
  std::printf("verdict: %s, %lu requests compared with cold engines, %zu differ\n",
              verdict_of(report).c_str(), report.compared_requests,
              report.differing_requests.size());
}

nlohmann::json to_json(const RolloutReport& report) {
  nlohmann::json cycles = nlohmann::json::array();
  for (const CycleReport& cycle : report.cycles) {
    cycles.push_back({
        {"weights", cycle.weights},
        {"pause_mode", cycle.pause_mode},
        {"prompt_tokens", cycle.prompt_tokens},
        {"local_hit_tokens", cycle.local_hit_tokens},
        {"external_hit_tokens", cycle.external_hit_tokens},
        {"computed_tokens", cycle.computed_tokens},
        {"first_use_external_hit_tokens", cycle.first_use_external_hit_tokens},
        {"first_engine_external_hit_tokens", cycle.first_engine_external_hit_tokens},
        {"second_engine_external_hit_tokens", cycle.second_engine_external_hit_tokens},
        {"two_identity_requests", cycle.two_identity_requests},
        {"pause_ms", cycle.pause_ms},
        {"update_ms", cycle.update_ms},
        {"reset_ms", cycle.reset_ms},
        {"reset_steps_ms", cycle.reset_steps_ms},
        {"tokens_per_s", static_cast<double>(cycle.output_tokens) / cycle.seconds},
    });
  }
  return {{"verdict", verdict_of(report)},
          {"compared_requests", report.compared_requests},
          {"differing_requests", report.differing_requests.size()},
          {"cycles", cycles}};
}

}  // namespace newmoon
