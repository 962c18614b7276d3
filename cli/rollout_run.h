// What the two forms of a cycle share, all engines together (rollout.cc) and one after
// the other (rollout_rolling.cc): the requests, the calls of a weight update, the books.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cli/model_files.h"
#include "cli/rollout.h"
#include "cli/rollout_fleet.h"

namespace newmoon {

inline constexpr Duration kGenerateTimeout = std::chrono::minutes(10);
inline constexpr int kInFlightPerEngine = 2;  // requests that run while the weights change

// Which requests are asked. Those of a cycle that returns to earlier weights are of the
// problems of the cycle that had them, so that they can hit.
class RolloutWorkload {
 public:
  // `options` is borrowed.
  RolloutWorkload(const RolloutOptions& options, PromptSet prompts)
      : options_(options), prompts_(std::move(prompts)) {}

  // Problem k of a cycle under the shared prefix; its id ends in `suffix`.
  nlohmann::json request(int cycle, int k, std::string_view suffix) const;
  // An engine's first one with a cycle's weights. It has a prefix of its own, which no
  // request that was in flight during the update can have brought into the local cache:
  // what it finds, it finds in the store.
  nlohmann::json first_request(int cycle, std::size_t engine) const;
  // What an engine is given right before it pauses for `coming_cycle`, one after the other.
  std::vector<nlohmann::json> in_flight_requests(int coming_cycle, std::size_t engine) const;

 private:
  const std::string& problem(int cycle, int k) const;

  const RolloutOptions& options_;
  const PromptSet prompts_;
};

// One call of a weight update, in the order of weight_update_calls().
struct ControlCall {
  nlohmann::json request;
  double CycleReport::* ms;  // where its time is noted
  Duration timeout;
};
std::vector<ControlCall> weight_update_calls(const CycleReport& row);
// Of the engines' times a row keeps the longest.
void note_control_reply(const ControlCall& call, const nlohmann::json& reply, CycleReport& row);

// An engine's outputs, into the row and the report's spans.
void take_outputs(const nlohmann::json& reply, CycleReport& row, RolloutReport& report);

struct RolloutRun {
  const RolloutOptions& options;
  const RolloutWorkload workload;
  Fleet fleet;
  RolloutReport report;

  void take(const nlohmann::json& reply, CycleReport& row) { take_outputs(reply, row, report); }
  // Likewise, of an engine's first request with the row's weights.
  void take_first(std::size_t engine, const nlohmann::json& reply, CycleReport& row);
  // Submits an engine's in-flight requests; returns without their replies, one each.
  Status start_in_flight(int coming_cycle, std::size_t engine);
};

// row.weights and row.pause_mode are set; returns when every engine has them.
Status run_rolling_cycle(RolloutRun& run, int cycle, CycleReport& row);

// A line that is redrawn on a terminal, and a line a stage elsewhere.
void show_progress(int cycle, int cycles, std::string_view stage);

}  // namespace newmoon
