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

// What came after one context, on whichever engine and however often: the cold engine is
// asked once, for the longest.
using SpansByContext = std::map<std::vector<std::int32_t>, std::vector<const OutputSpan*>>;

struct ColdQuestion {
  const std::vector<std::int32_t>* context;
  std::vector<const OutputSpan*> spans;
};

Json cold_requests(const std::vector<ColdQuestion>& questions) {
  Json requests = Json::array();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    std::size_t longest = 0;
    for (const OutputSpan* span : questions[i].spans) {
      longest = std::max(longest, span->tokens.size());
    }
    requests.push_back({{"id", std::to_string(i)},
                        {"prompt_token_ids", *questions[i].context},
                        {"max_tokens", longest}});
  }
  return {{"op", "generate"}, {"requests", requests}, {"flush", false}};
}

// One set of weights: the cold engine's process and what it is asked.
struct ColdRun {
  ChildProcess engine;
  std::vector<ColdQuestion> questions;
};

Result<ColdRun> start_cold(const RolloutOptions& options, const std::string& weights,
                           const SpansByContext& spans_by_context) {
  const std::string name = "cold-" + weights;
  Result<ChildProcess> engine = ChildProcess::start(
      name, engine_process_argv(options, name, "none", weights), options.stop_fd);
  if (!engine) return std::unexpected(engine.error());
  std::vector<ColdQuestion> questions;
  for (const auto& [context, spans] : spans_by_context) questions.push_back({&context, spans});
  return ColdRun{std::move(*engine), std::move(questions)};
}

Status ask(ColdRun& run) {
  if (const Result<Json> ready = run.engine.receive(kStartTimeout); !ready) {
    return std::unexpected(ready.error());
  }
  return run.engine.send(cold_requests(run.questions));
}

Status judge(ColdRun& run, std::set<std::string>& differing) {
  const Result<Json> reply = run.engine.receive(kCompareTimeout);
  if (!reply) return std::unexpected(reply.error());
  for (const Json& output : reply->at("outputs")) {
    const std::size_t index = std::stoul(output.at("id").get<std::string>());
    const std::vector<std::int32_t> tokens = output.at("token_ids");
    for (const OutputSpan* span : run.questions.at(index).spans) {
      const auto [difference, other] = std::ranges::mismatch(span->tokens, tokens);
      if (difference != span->tokens.end()) differing.insert(span->request_id);
    }
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
  std::map<std::string, SpansByContext> by_weights;
  std::set<std::string> compared;
  for (const OutputSpan& span : report.spans) {
    by_weights[span.weights][span.context].push_back(&span);
    compared.insert(span.request_id);
  }
  std::set<std::string> differing;
  std::vector<ColdRun> runs;
  for (const auto& [weights, spans_by_context] : by_weights) {
    std::fprintf(stderr, "comparing with a cold engine of weights %s: %zu distinct contexts\n",
                 weights.c_str(), spans_by_context.size());
    Result<ColdRun> run = start_cold(options, weights, spans_by_context);
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
