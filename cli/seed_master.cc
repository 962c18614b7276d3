// The seed's gravest failure on a real store: its master dies. The wheel's remove_all then
// returns a negative code, which upstream does not look at: it acks the reset as done.
#include <string>

#include "cli/seed_engine.h"
#include "cli/seed_walk.h"
#include "cli/seed_wire.h"

namespace newmoon {
namespace {

using std::chrono::seconds;

// How long a client of the wheel may take to find a master that is back.
constexpr Duration kReturn = seconds(20);

std::string text_of(const CacheResetAnswer& answer) {
  return std::string(answer.success ? "true" : "false") + (answer.degraded ? ", degraded" : "");
}

class DeadMaster {
 public:
  DeadMaster(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report)
      : ranks_(ranks), store_(store), trace_(trace), report_(report) {}

  Status run() {
    report_.section("8. the store's master is killed, and comes back");
    for (const auto part : {&DeadMaster::fence, &DeadMaster::remove_all}) {
      if (const Status ran = (this->*part)(); !ran) return ran;
    }
    report_.end_table();
    return {};
  }

 private:
  Status start(ResetMode mode) {
    engine_.reset();
    if (const Status empty = store_.empty(); !empty) return empty;
    Result<std::unique_ptr<SeedEngine>> engine =
        SeedEngine::start({.ranks = ranks_, .reset_mode = mode}, store_.store(), trace_);
    if (!engine) return std::unexpected(engine.error());
    engine_ = std::move(*engine);
    ask(std::string(to_string(mode)) + ": an answer, and its values are stored");
    return {};
  }

  // Rule FIRST: nothing of the store is needed for the fence.
  Status fence() {
    if (const Status started = start(ResetMode::kFence); !started) return started;
    store_.master()->kill();
    check_reset("fence, the master is dead: reset", "true");
    ask("  an answer after it");
    return come_back("fence");
  }

  Status remove_all() {
    if (const Status started = start(ResetMode::kRemoveAll); !started) return started;
    store_.master()->kill();
    check_reset("remove_all, the master is dead: reset (upstream: true)", "false, degraded");
    report_.check("  RESET_MSG (upstream: 01)", "00",
                  ask_raw(engine_->stack().endpoint(0), encode_foreign_reset()));
    ask("  an answer after it");
    if (const Status back = come_back("remove_all"); !back) return back;
    check_reset("  reset", "true");
    report_.check("  values", "0", std::to_string(engine_->values_in_store()));
    return {};
  }

  // The engine goes on without the external tier; when the master is back, so is that.
  Status come_back(const std::string& mode) {
    if (const Status restarted = store_.master()->restart(); !restarted) return restarted;
    // A reset leaves a scope of its own; an update ends at one that can be returned to.
    if (const Status updated = engine_->update_weights(SeedEngine::kFirstWeights); !updated) {
      return updated;
    }
    const Time deadline = engine_->in(kReturn);
    std::uint64_t hit = 0;
    for (int number = 1; hit == 0 && engine_->now() < deadline; ++number) {
      // What is saved once more is found once the local cache forgets it.
      const std::string id = "back " + std::to_string(number);
      engine_->generate(id, SeedEngine::prompt(number));
      engine_->core().reset_prefix_cache(true, false, engine_->in(seconds(5)));
      hit = engine_->generate(id, SeedEngine::prompt(number)).end.counters.external_hit_tokens;
      wait();
    }
    report_.check(mode + ", the master is back: a prompt is found in the store", "yes",
                  hit > 0 ? "yes" : "no");
    return {};
  }

  void wait() {
    const Time until = engine_->in(std::chrono::milliseconds(50));
    while (engine_->now() < until) engine_->idle();
  }

  void check_reset(const std::string& what, const std::string& expected) {
    constexpr Duration kTimeout = seconds(5);
    const Time started = engine_->now();
    const CacheResetAnswer answer = engine_->core().reset_caches(engine_->in(kTimeout));
    report_.check(what, expected, text_of(answer));
    report_.check("  within its deadline", "yes",
                  engine_->now() - started < kTimeout + seconds(1) ? "yes" : "no");
  }

  // Without the external tier, if it must be: nothing waits for the store for long.
  void ask(const std::string& what) {
    const std::vector<Token> prompt = SeedEngine::prompt(0);
    const Time started = engine_->now();
    const bool same =
        engine_->generate("ask", prompt).tokens == engine_->cold(SeedEngine::kFirstWeights, prompt);
    report_.check(what, "a cold engine's", same ? "a cold engine's" : "another");
    report_.check("  within 4 seconds", "yes",
                  engine_->now() - started < seconds(4) ? "yes" : "no");
  }

  const std::size_t ranks_;
  SeedStore& store_;
  SeedTrace& trace_;
  SeedReport& report_;
  std::unique_ptr<SeedEngine> engine_;
};

}  // namespace

Status walk_dead_master(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report) {
  return DeadMaster(ranks, store, trace, report).run();
}

}  // namespace newmoon
