#include "cli/rollout_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr int kDistinctCycles = 4;  // then the problems come again, with the weights
constexpr Duration kControlTimeout = std::chrono::seconds(60);
// Differs in the first block, so that no later one is shared with the usual prefix.
constexpr std::string_view kFirstRequestHeading = "# Problems and their solutions.\n\n";

}  // namespace

void show_progress(int cycle, int cycles, std::string_view stage) {
  static const bool terminal = isatty(STDERR_FILENO) != 0;
  std::string bar(static_cast<std::size_t>(cycles), '.');
  std::fill(bar.begin(), bar.begin() + cycle, '#');
  std::fprintf(stderr, "%s[%s] cycle %d/%d %-40.*s%s", terminal ? "\r" : "", bar.c_str(),
               std::min(cycle + 1, cycles), cycles, static_cast<int>(stage.size()), stage.data(),
               terminal ? "" : "\n");
  if (terminal && cycle == cycles) std::fputc('\n', stderr);
}

// --- requests ---

const std::string& RolloutWorkload::problem(int cycle, int k) const {
  const int distinct = options_.repeat_problems ? 0 : cycle % kDistinctCycles;
  const auto index = static_cast<std::size_t>(distinct * options_.requests + k);
  return prompts_.problems[index % prompts_.problems.size()];
}

Json RolloutWorkload::request(int cycle, int k, std::string_view suffix) const {
  return {{"id", "c" + std::to_string(cycle) + "-r" + std::to_string(k) + std::string(suffix)},
          {"prompt", prompts_.prefix + problem(cycle, k)},
          {"max_tokens", options_.max_tokens}};
}

Json RolloutWorkload::first_request(int cycle, std::size_t engine) const {
  Json first = request(cycle, static_cast<int>(engine), "-first");
  first["prompt"] = std::string(kFirstRequestHeading) + first["prompt"].get<std::string>();
  return first;
}

// First a problem that the neighbour is asked in the coming cycle: its save may be under way
// when the pause comes. While it decodes, one that the neighbour has just answered: its load
// may be.
std::vector<Json> RolloutWorkload::in_flight_requests(int coming_cycle, std::size_t engine) const {
  const int neighbour = (static_cast<int>(engine) + 1) % options_.engines;
  const std::string suffix = "-across-" + std::to_string(engine);
  return {request(coming_cycle, neighbour + options_.engines, suffix),
          request(coming_cycle - 1, neighbour, suffix)};
}

// --- control ---

std::vector<ControlCall> weight_update_calls(const CycleReport& row) {
  return {{{{"op", "pause"}, {"mode", row.pause_mode}, {"clear_cache", true}},
           &CycleReport::pause_ms,
           kGenerateTimeout},
          {{{"op", "update"}, {"weights", row.weights}}, &CycleReport::update_ms, kControlTimeout},
          {{{"op", "reset"}}, &CycleReport::reset_ms, kControlTimeout},
          {{{"op", "resume"}}, &CycleReport::resume_ms, kControlTimeout}};
}

void note_control_reply(const ControlCall& call, const Json& reply, CycleReport& row) {
  if (reply.at("ms") < row.*call.ms) return;
  row.*call.ms = reply.at("ms");
  if (reply.contains("steps_ms")) row.reset_steps_ms = reply.at("steps_ms");
}

// --- books ---

void take_outputs(const Json& reply, CycleReport& row, RolloutReport& report) {
  for (const Json& output : reply.at("outputs")) {
    const std::vector<std::int32_t> prompt = output.at("prompt_token_ids");
    const std::vector<std::int32_t> tokens = output.at("token_ids");
    row.prompt_tokens += prompt.size();
    row.output_tokens += tokens.size();
    row.local_hit_tokens += output.at("local_hit_tokens").get<std::uint64_t>();
    row.external_hit_tokens += output.at("external_hit_tokens").get<std::uint64_t>();
    row.computed_tokens += output.at("computed_tokens").get<std::uint64_t>();
    for (const Json& span : output.at("weight_versions")) {
      const auto start = span.at("start").get<std::ptrdiff_t>();
      const auto end = span.at("end").get<std::ptrdiff_t>();
      OutputSpan stretch{.weights = span.at("version"),
                         .request_id = output.at("id"),
                         .context = prompt,
                         .tokens = {tokens.begin() + start, tokens.begin() + end}};
      stretch.context.insert(stretch.context.end(), tokens.begin(), tokens.begin() + start);
      report.spans.push_back(std::move(stretch));
    }
  }
}

void RolloutRun::take_first(std::size_t engine, const Json& reply, CycleReport& row) {
  const std::uint64_t before = row.external_hit_tokens;
  take(reply, row);
  const std::uint64_t hit = row.external_hit_tokens - before;
  row.first_use_external_hit_tokens += hit;
  if (engine == 0) row.first_engine_external_hit_tokens = hit;
  if (engine == 1) row.second_engine_external_hit_tokens = hit;
}

Status RolloutRun::start_in_flight(int coming_cycle, std::size_t engine) {
  // Not waited for: the pause follows as soon as the engine has come so far.
  int until_output_tokens = 0;
  for (const Json& in_flight : workload.in_flight_requests(coming_cycle, engine)) {
    const bool is_first = until_output_tokens == 0;
    until_output_tokens += 3;
    const Status sent = fleet.engine(engine).send({{"op", "submit"},
                                                   {"requests", Json::array({in_flight})},
                                                   {"until_output_tokens", until_output_tokens},
                                                   {"mark", is_first}});
    if (!sent) return sent;
  }
  return {};
}

}  // namespace newmoon
