// The seed's failure cases: where the external tier is missing, broken, dead, lied to
// or not told.
#include <algorithm>
#include <string>

#include "cli/seed_engine.h"
#include "cli/seed_walk.h"
#include "cli/seed_wire.h"
#include "hash/value.h"

namespace newmoon {
namespace {

using std::chrono::seconds;

// "true", "false: why", "true, degraded: why".
std::string text_of(bool success, bool degraded) {
  return std::string(success ? "true" : "false") + (degraded ? ", degraded" : "");
}
std::string text_of(const CacheResetAnswer& answer) {
  return text_of(answer.success, answer.degraded);
}

class Failures {
 public:
  Failures(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report)
      : ranks_(ranks), store_(store), trace_(trace), report_(report) {}

  Status run() {
    for (const auto& [title, part] :
         {std::pair{"4. failures of the cascade", &Failures::cascade},
          {"5. the seed's wire: whatever a peer sends is answered, and the rank serves on",
           &Failures::wire},
          {"6. a caller that did not pause", &Failures::not_paused},
          {"7. a rank that died", &Failures::dead_rank}}) {
      report_.section(title);
      if (const Status ran = (this->*part)(); !ran) return ran;
      report_.end_table();
    }
    return {};
  }

 private:
  using Engine = std::unique_ptr<SeedEngine>;

  Result<Engine> start(ResetMode mode, bool connector = true) {
    if (const Status empty = store_.empty(); !empty) return std::unexpected(empty.error());
    return SeedEngine::start({.ranks = ranks_, .reset_mode = mode, .connector = connector},
                             store_.store(), trace_);
  }
  static CacheResetAnswer reset(SeedEngine& engine, Duration timeout = seconds(5)) {
    return engine.core().reset_caches(engine.in(timeout));
  }
  void check_answer(const Engine& engine, const std::string& what, const RequestId& id,
                    const std::vector<Token>& prompt, std::uint64_t weights) {
    const bool same = engine->generate(id, prompt).tokens == engine->cold(weights, prompt);
    report_.check(what, "a cold engine's", same ? "a cold engine's" : "another");
  }

  Status cascade();
  Status no_connector();
  Status worker_role();
  Status client_error();
  Status store_error();

  Status wire();
  void preload(SeedEngine& engine, const std::vector<BlockHash>& blocks) const;
  void check_malformed(const std::string& endpoint);

  Status not_paused();
  Status not_paused_with_remove_all();
  void start_running(SeedEngine& engine);
  void check_running(SeedEngine& engine, int number);

  Status dead_rank();
  Status dead_rank_with_remove_all();

  const std::size_t ranks_;
  SeedStore& store_;
  SeedTrace& trace_;
  SeedReport& report_;
};

// --- cascade ---

Status Failures::cascade() {
  for (const auto part : {&Failures::no_connector, &Failures::worker_role, &Failures::client_error,
                          &Failures::store_error}) {
    if (const Status ran = (this->*part)(); !ran) return ran;
  }
  return {};
}

Status Failures::no_connector() {
  constexpr std::string_view kHop = "reset_connector_cache";
  const Result<Engine> engine = start(ResetMode::kFence, false);
  if (!engine) return std::unexpected(engine.error());
  trace_.take();
  report_.check("no connector: reset", "true", text_of(reset(**engine)));
  std::string said = "nothing";
  for (const SeedTrace::Line& line : trace_.take()) {
    if (line.text.starts_with(kHop)) said = line.level + line.text.substr(kHop.size());
  }
  report_.check("no connector: says", "debug: no connector, nothing to reset", said);
  return {};
}

Status Failures::worker_role() {
  const Result<Engine> engine = start(ResetMode::kFence);
  if (!engine) return std::unexpected(engine.error());
  StoreConnector connector = StoreConnector::for_worker((*engine)->stack().worker(0));
  const std::optional<ResetAnswer> answer = connector.reset_cache((*engine)->in(seconds(5)));
  report_.check("worker role: reset_cache", "nullopt", answer ? "an answer" : "nullopt");
  return {};
}

Status Failures::client_error() {
  for (const auto& [mode, expected] : {std::pair{ResetMode::kRemoveAll, "false, degraded"},
                                       {ResetMode::kFence, "true, degraded"}}) {
    const Result<Engine> engine = start(mode);
    if (!engine) return std::unexpected(engine.error());
    const std::string name = std::string(to_string(mode)) + ", nothing can be sent: ";
    (*engine)->break_channel();
    report_.check(name + "reset", expected, text_of(reset(**engine)));
    check_answer(*engine, name + "an answer after it", "after", SeedEngine::prompt(1), 1);
  }
  return {};
}

Status Failures::store_error() {
  const Result<Engine> engine = start(ResetMode::kRemoveAll);
  if (!engine) return std::unexpected(engine.error());
  (*engine)->generate("fill", SeedEngine::prompt(0));
  (*engine)->store().remove_all_mode = TracedStore::RemoveAll::kFails;
  report_.check("remove_all, the store's master is dead: reset", "false, degraded",
                text_of(reset(**engine)));
  report_.check("remove_all, the store's master is dead: RESET_MSG", "00",
                ask_raw((*engine)->stack().endpoint(0), encode_foreign_reset()));
  (*engine)->store().remove_all_mode = TracedStore::RemoveAll::kLeavesAll;
  report_.check("remove_all answers well and removes nothing: reset", "false, degraded",
                text_of(reset(**engine)));
  (*engine)->store().remove_all_mode = TracedStore::RemoveAll::kWorks;
  report_.check("remove_all, the store is back: reset", "true", text_of(reset(**engine)));
  report_.check("remove_all, the store is back: values", "0",
                std::to_string((*engine)->values_in_store()));
  return {};
}

// --- wire ---

// Values that a foreign peer can look up, of every rank.
void Failures::preload(SeedEngine& engine, const std::vector<BlockHash>& blocks) const {
  for (const BlockHash& block : blocks) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const Key key{ScopeId{}, Shard{.tp = static_cast<std::uint16_t>(rank)}, block};
      const PutItem item{.key = key, .header = make_header(key, LayoutId{}, 0), .payload = {}};
      engine.store().put({&item, 1});
    }
  }
}

Status Failures::wire() {
  const Result<Engine> engine = start(ResetMode::kFence);
  if (!engine) return std::unexpected(engine.error());
  std::vector<BlockHash> blocks;
  for (std::uint8_t i = 1; i <= 3; ++i) blocks.emplace_back(Bytes(16, i));
  preload(**engine, {blocks.begin(), blocks.begin() + 2});
  LookupRequest lookup;
  lookup.num_tokens = 12;
  lookup.block_hashes = blocks;
  const std::string& endpoint = (*engine)->stack().endpoint(0);
  const Frames seed_lookup = encode_foreign_lookup(ForeignDialect::kSeed, lookup);
  const Frames vllm_lookup = encode_foreign_lookup(ForeignDialect::kVllm, lookup);
  report_.say("lookup, the seed's:   " + frames_hex(seed_lookup));
  report_.say("lookup, vLLM 0.32's:  " + frames_hex(vllm_lookup));
  report_.say("reset:                " + frames_hex(encode_foreign_reset()));

  report_.check("lookup, the seed's, 2 of 3 blocks there: tokens", "00000008",
                ask_raw(endpoint, seed_lookup));
  report_.check("lookup, vLLM 0.32's", "00000008", ask_raw(endpoint, vllm_lookup));
  Frames with_fifth = vllm_lookup;
  with_fifth.push_back({1});
  report_.check("lookup with a fifth frame, which is ignored", "00000008",
                ask_raw(endpoint, with_fifth));
  check_malformed(endpoint);
  report_.check("lookup after all that", "00000008", ask_raw(endpoint, seed_lookup));
  report_.check("reset", "01", ask_raw(endpoint, encode_foreign_reset()));
  report_.check("values after it", "0", std::to_string((*engine)->values_in_store()));
  report_.check("lookup after it", "00000000", ask_raw(endpoint, seed_lookup));
  return {};
}

void Failures::check_malformed(const std::string& endpoint) {
  const Bytes tag = to_bytes(LOOKUP_MSG);
  const Bytes tokens{0, 0, 0, 12};
  const std::pair<std::string, Frames> messages[] = {
      {"empty message", {}},
      {"empty frame", {{}}},
      {"unknown tag", {to_bytes("flush")}},
      {"lookup alone", {tag}},
      {"lookup without hashes", {tag, tokens}},
      {"lookup with 3 bytes of token_len", {tag, {0, 0, 12}, {0x90}}},
      {"lookup with hashes that are no msgpack", {tag, tokens, {0xc1, 0xff}}},
      {"lookup of 3 bytes of hashes of 32", {tag, tokens, {0, 32}, {1, 2, 3}}},
      {"reset with a surplus frame", {to_bytes(RESET_MSG), to_bytes("force")}},
  };
  for (const auto& [what, frames] : messages) {
    report_.check(what + ": " + frames_hex(frames), "00", ask_raw(endpoint, frames));
  }
}

// --- a caller that did not pause ---

constexpr int kRunning = 2;
constexpr std::uint32_t kLongAnswer = 16;
const char* const kLatePut = "late put";

std::string running_id(int number) { return "running " + std::to_string(number); }

// Requests in the middle of their answers.
void Failures::start_running(SeedEngine& engine) {
  for (int i = 0; i < kRunning; ++i) {
    const Status added = engine.add(running_id(i), SeedEngine::prompt(i), kLongAnswer);
    report_.check("request " + std::to_string(i) + " runs", "true",
                  added ? "true" : added.error().message);
  }
  const Time deadline = engine.in(seconds(30));
  const auto said_little = [&engine](int i) {
    return engine.generation(running_id(i)).tokens.size() < 4;
  };
  // One of them may wait for its lookup while the other talks: each step gives it twice the
  // time, so that on a busy machine, too, the other has not said all by then.
  for (int moments = 10; (said_little(0) || said_little(1)) && engine.now() < deadline;
       moments *= 2) {
    engine.step();
    for (int moment = 0; moment < moments; ++moment) engine.idle();
  }
}

bool wait_for_held_put(SeedEngine& engine) {
  const Time deadline = engine.in(seconds(30));
  while (engine.faults().waiting_at(kLatePut) == 0 && engine.now() < deadline) engine.idle();
  return engine.faults().waiting_at(kLatePut) > 0;
}

Status Failures::not_paused() {
  const Result<Engine> engine = start(ResetMode::kFence);
  if (!engine) return std::unexpected(engine.error());
  // The first save of each rank waits: it becomes a late put of the old weights.
  (*engine)->faults().add_rule({.op = FaultRule::Op::kPut, .hold = kLatePut});
  start_running(**engine);
  report_.check("a save of theirs is under way", "yes", wait_for_held_put(**engine) ? "yes" : "no");
  const CacheResetAnswer answer =
      (*engine)->core().reset_prefix_cache(false, true, (*engine)->in(seconds(5)));
  report_.check("fence, reset while they run (upstream: false)", "true, 2 tainted",
                text_of(answer) + ", " + std::to_string(answer.tainted_requests) + " tainted");
  const Status updated = (*engine)->update_weights(2);
  report_.check("weights 2 under them, still without a pause", "true",
                updated ? "true" : updated.error().message);
  (*engine)->faults().release(kLatePut);
  (*engine)->run();
  for (int i = 0; i < kRunning; ++i) check_running(**engine, i);
  for (int i = 0; i < kRunning; ++i) {
    check_answer(*engine, "the same prompt " + std::to_string(i) + " under weights 2",
                 "again " + std::to_string(i), SeedEngine::prompt(i), 2);
  }
  return not_paused_with_remove_all();
}

// Each token is what the weights that sampled it say, after all tokens before it.
void Failures::check_running(SeedEngine& engine, int number) {
  const SeedGeneration& generation = engine.generation(running_id(number));
  std::vector<Token> context = SeedEngine::prompt(number);
  std::vector<Token> expected;
  std::string versions;
  for (const WeightVersionSpan& span : generation.end.weight_versions) {
    versions += (versions.empty() ? "" : ", then ") + span.version;
    const std::vector<Token> said =
        engine.cold(std::stoull(span.version), context, span.end - span.start);
    context.insert(context.end(), said.begin(), said.end());
    expected.insert(expected.end(), said.begin(), said.end());
  }
  const std::string what = "request " + std::to_string(number) + ": ";
  report_.check(what + "sampled by weights", "1, then 2", versions);
  const bool same = generation.tokens == expected && expected.size() == kLongAnswer;
  report_.check(what + "each token", "a cold engine's", same ? "a cold engine's" : "another");
}

Status Failures::not_paused_with_remove_all() {
  const Result<Engine> engine = start(ResetMode::kRemoveAll);
  if (!engine) return std::unexpected(engine.error());
  start_running(**engine);
  const CacheResetAnswer answer =
      (*engine)->core().reset_prefix_cache(false, true, (*engine)->in(seconds(5)));
  report_.check("remove_all, reset while they run (as upstream)", "false", text_of(answer));
  report_.check("remove_all, it says",
                std::to_string(kRunning) + " requests hold blocks that are not freed yet",
                answer.error);
  (*engine)->run();
  return {};
}

// --- a rank that died ---

// A living rank's to answer in, on a busy machine too.
constexpr Duration kDeadRankTimeout = seconds(2);

std::string silent_ranks(const CacheResetAnswer& answer) {
  std::string text = text_of(answer) + ", silent:";
  for (const std::size_t rank : answer.silent_ranks) text += " " + std::to_string(rank);
  return text;
}

Status Failures::dead_rank() {
  const Result<Engine> engine = start(ResetMode::kFence);
  if (!engine) return std::unexpected(engine.error());
  const std::size_t dead = ranks_ - 1;
  const std::string expected = "true, degraded, silent: " + std::to_string(dead);
  (*engine)->generate("before", SeedEngine::prompt(0));
  (*engine)->stack().stop_server(dead);

  const Time started = (*engine)->now();
  report_.check("fence: reset", expected, silent_ranks(reset(**engine, kDeadRankTimeout)));
  const Duration first = (*engine)->now() - started;
  // Twice the time, since a busy machine is no hang.
  report_.check("  it ends by its deadline", "yes", first < 2 * kDeadRankTimeout ? "yes" : "no");
  const Time again = (*engine)->now();
  report_.check("fence: reset again", expected, silent_ranks(reset(**engine, seconds(60))));
  report_.check("  the dead rank is not awaited again", "yes",
                (*engine)->now() - again < seconds(30) ? "yes" : "no");
  check_answer(*engine, "an answer after it", "after", SeedEngine::prompt(0), 1);
  return dead_rank_with_remove_all();
}

Status Failures::dead_rank_with_remove_all() {
  const Result<Engine> engine = start(ResetMode::kRemoveAll);
  if (!engine) return std::unexpected(engine.error());
  (*engine)->generate("before", SeedEngine::prompt(0));
  const std::uint64_t values = (*engine)->values_in_store();
  const std::size_t dead = ranks_ - 1;
  (*engine)->stack().stop_server(dead);
  report_.check("remove_all: reset", "false, degraded, silent: " + std::to_string(dead),
                silent_ranks(reset(**engine, kDeadRankTimeout)));
  report_.check("  nothing is removed where a rank may still put", std::to_string(values),
                std::to_string((*engine)->values_in_store()));
  check_answer(*engine, "an answer after it", "after", SeedEngine::prompt(0), 1);
  return {};
}

}  // namespace

Status walk_failures(std::size_t ranks, SeedStore& store, SeedTrace& trace, SeedReport& report) {
  return Failures(ranks, store, trace, report).run();
}

}  // namespace newmoon
