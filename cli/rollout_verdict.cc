// Cold engines: fresh processes that have only ever held one set of weights, without
// the external store.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "cli/child_process.h"
#include "cli/rollout.h"

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kCompareTimeout = std::chrono::minutes(15);

Json cold_requests(const std::vector<const OutputSpan*>& spans) {
  Json requests = Json::array();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    requests.push_back({{"id", std::to_string(i)},
                        {"prompt_token_ids", spans[i]->context},
                        {"max_tokens", spans[i]->tokens.size()}});
  }
  return {{"op", "generate"}, {"requests", requests}, {"flush", false}};
}

// One set of weights: the cold engine's process and what it is asked.
struct ColdRun {
  ChildProcess engine;
  std::vector<const OutputSpan*> spans;
};

Result<ColdRun> start_cold(const RolloutOptions& options, const std::string& weights,
                           std::vector<const OutputSpan*> spans) {
  const std::string name = "cold-" + weights;
  Result<ChildProcess> engine = ChildProcess::start(
      name, engine_process_argv(options, name, "none", weights), options.stop_fd);
  if (!engine) return std::unexpected(engine.error());
  return ColdRun{std::move(*engine), std::move(spans)};
}

Status ask(ColdRun& run) {
  if (const Result<Json> ready = run.engine.receive(kStartTimeout); !ready) {
    return std::unexpected(ready.error());
  }
  return run.engine.send(cold_requests(run.spans));
}

Status judge(ColdRun& run, std::set<std::string>& differing) {
  const Result<Json> reply = run.engine.receive(kCompareTimeout);
  if (!reply) return std::unexpected(reply.error());
  for (const Json& output : reply->at("outputs")) {
    const std::size_t index = std::stoul(output.at("id").get<std::string>());
    const OutputSpan& span = *run.spans.at(index);
    const std::vector<std::int32_t> tokens = output.at("token_ids");
    if (tokens != span.tokens) differing.insert(span.request_id);
  }
  return {};
}

// As many cold engines at a time as there were engines.
Status judge_all(std::vector<ColdRun>& runs, std::set<std::string>& differing) {
  for (ColdRun& run : runs) {
    if (const Status asked = ask(run); !asked) return asked;
  }
  for (ColdRun& run : runs) {
    if (const Status judged = judge(run, differing); !judged) return judged;
  }
  runs.clear();
  return {};
}

}  // namespace

Status compare_with_cold_engines(const RolloutOptions& options, RolloutReport& report) {
  std::map<std::string, std::vector<const OutputSpan*>> by_weights;
  std::set<std::string> compared;
  for (const OutputSpan& span : report.spans) {
    by_weights[span.weights].push_back(&span);
    compared.insert(span.request_id);
  }
  std::set<std::string> differing;
  std::vector<ColdRun> runs;
  for (auto& [weights, spans] : by_weights) {
    std::fprintf(stderr, "comparing %zu outputs with a cold engine of weights %s\n", spans.size(),
                 weights.c_str());
    Result<ColdRun> run = start_cold(options, weights, std::move(spans));
    if (!run) return std::unexpected(run.error());
    runs.push_back(std::move(*run));
    if (runs.size() < static_cast<std::size_t>(options.engines)) continue;
    if (const Status judged = judge_all(runs, differing); !judged) return judged;
  }
  if (const Status judged = judge_all(runs, differing); !judged) return judged;
  report.compared_requests = compared.size();
  report.differing_requests.assign(differing.begin(), differing.end());
  report.verified = true;
  return {};
}

}  // namespace newmoon
