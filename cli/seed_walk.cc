#include "cli/seed_walk.h"

#include <string>

#include "cli/seed_engine.h"
#include "cli/seed_hops.h"

namespace newmoon {
namespace {

// Of the prompt's 24 tokens, in blocks of 4: the last block is always computed.
constexpr std::string_view kHit = "0 local, 20 external, 4 computed";
constexpr std::string_view kLocalHit = "20 local, 0 external, 4 computed";
constexpr std::string_view kMiss = "0 local, 0 external, 24 computed";

std::string sources(const SeedGeneration& generation) {
  const RequestCounters& counters = generation.end.counters;
  // Those of the answer are computed one by one, but the last, which nobody attends to.
  const std::uint64_t of_answer = generation.tokens.empty() ? 0 : generation.tokens.size() - 1;
  return std::to_string(counters.local_hit_tokens) + " local, " +
         std::to_string(counters.external_hit_tokens) + " external, " +
         std::to_string(counters.computed_tokens - of_answer) + " computed";
}

class Walk {
 public:
  Walk(const SeedEngine::Options& options, SeedStore& store, SeedTrace& trace, SeedReport& report,
       SeedFigures& figures)
      : options_(options), store_(store), trace_(trace), report_(report), figures_(figures) {}

  // From a filled store to the reset.
  Status run() {
    if (const Status empty = store_.empty(); !empty) return empty;
    Result<std::unique_ptr<SeedEngine>> engine =
        SeedEngine::start(options_, store_.store(), trace_);
    if (!engine) return std::unexpected(engine.error());
    engine_ = std::move(*engine);
    for (std::size_t rank = 0; rank < options_.ranks; ++rank) {
      report_.say("rank " + std::to_string(rank) + " answers at " +
                  engine_->stack().endpoint(rank));
    }
    fill();
    reset();
    return {};
  }

  // A prompt of 6 blocks and 8 tokens of an answer: 7 full blocks, a value a rank each.
  std::uint64_t filled() const { return 7 * options_.ranks; }

  void after_remove_all() {
    check_values("values in the store after the reset", 0);
    ask("the same prompt after the reset", kMiss, 1);
    report_.end_table();
  }

  // A named scope is left as it is: whoever has those weights may be reading it.
  void after_fence() {
    check_values("values in the store after the reset", filled());
    ask("the same prompt: they cannot be found", kMiss, 1);
    check_values("values in the store: a scope of its own until the next update", 2 * filled());
    update(2);
    check_values("that scope is purged behind the update", filled());
    ask("the same prompt under weights 2", kMiss, 2);
    update(1);
    check_values("values in the store: both weights' scopes", 2 * filled());
    ask("the same prompt, back under weights 1", kHit, 1);
    report_.end_table();
  }

  // Nothing named the weights, so nobody can return to what they computed.
  void after_fence_of_unique_scope() {
    check_values("values in the store: the scope was purged in the background", 0);
    ask("the same prompt after the reset", kMiss, 1);
    report_.end_table();
  }

 private:
  void fill() {
    ask("a prompt of 24 tokens, nothing cached", kMiss, 1);
    ask("the same prompt again", kLocalHit, 1);
    check_values("values in the store before the reset", filled());
    if (options_.identity == IdentityMode::kUnique) return;
    // What every reset did before the seed: the external tier goes on as it was.
    engine_->core().reset_prefix_cache(true, false, engine_->in(std::chrono::seconds(5)));
    ask("the same prompt after reset_prefix_cache(reset_connector=false)", kHit, 1);
  }

  void reset() {
    report_.end_table();
    trace_.take();
    const PauseAnswer paused = engine_->pause_and_clear();
    const std::vector<SeedTrace::Line> lines = trace_.take();
    const std::size_t hops = print_hops(lines, options_.reset_mode, report_);
    figures_.hops += hops;
    figures_.messages += count_messages(lines);
    CacheResetAnswer answer;
    answer.success = false;
    if (paused.reset) answer = *paused.reset;
    report_.check("hops seen, in this order", std::to_string(hop_count(options_.reset_mode)),
                  std::to_string(hops));
    report_.check("answer", "true, scope new",
                  std::string(answer.success ? "true" : "false: " + answer.error) + ", scope " +
                      std::string(to_string(answer.scope)));
    const bool removes = options_.reset_mode == ResetMode::kRemoveAll;
    // A real store counts the records of scopes that lie in it as well.
    const std::uint64_t values = removes ? filled() : 0;
    const bool enough = removes ? answer.removed >= values : answer.removed == 0;
    const std::string expected = std::to_string(values) + (removes ? " or more" : "");
    report_.check("values removed before the answer", expected,
                  enough ? expected : std::to_string(answer.removed));
  }

  void ask(const std::string& what, std::string_view expected, std::uint64_t weights) {
    const SeedGeneration& generation = engine_->generate("request " + what, prompt_);
    report_.check(what, std::string(expected), sources(generation));
    const bool same = generation.tokens == engine_->cold(weights, prompt_);
    report_.check("  its answer is a cold engine's", "yes", same ? "yes" : "no");
  }

  void update(std::uint64_t weights) {
    const Status updated = engine_->update_weights(weights);
    report_.check("update to weights " + std::to_string(weights), "true",
                  updated ? "true" : to_string(updated.error()));
  }

  void check_values(const std::string& what, std::uint64_t expected) {
    report_.check(what, std::to_string(expected),
                  std::to_string(engine_->wait_for_values(expected)));
  }

  const SeedEngine::Options options_;
  SeedStore& store_;
  SeedTrace& trace_;
  SeedReport& report_;
  SeedFigures& figures_;
  const std::vector<Token> prompt_ = SeedEngine::prompt(0);
  std::unique_ptr<SeedEngine> engine_;
};

}  // namespace

Status walk_cascade(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report,
                    SeedFigures& figures) {
  struct Chapter {
    std::string title;
    SeedEngine::Options options;
    void (Walk::*after)();
  };
  const Chapter chapters[] = {
      {"1. reset_mode: remove_all, as upstream: drain every rank, then empty the store",
       {.ranks = ranks, .reset_mode = ResetMode::kRemoveAll},
       &Walk::after_remove_all},
      {"2. the default fence: nothing old can be found from step 0 on, nothing is awaited",
       {.ranks = ranks},
       &Walk::after_fence},
      {"3. the default fence where nothing names the weights: what was left is purged",
       {.ranks = ranks, .identity = IdentityMode::kUnique},
       &Walk::after_fence_of_unique_scope},
  };
  for (const Chapter& chapter : chapters) {
    report.section(chapter.title);
    Walk walk(chapter.options, store, trace, report, figures);
    if (const Status ran = walk.run(); !ran) return ran;
    (walk.*chapter.after)();
  }
  return {};
}

}  // namespace newmoon
