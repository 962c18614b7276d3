// One engine process in a test: production objects of all layers over the toy model,
// with R ranks and a store it may share with other engines. Nothing runs by itself:
// step() and run() move it on, transfers run at the end of each step unless held.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "admin/lookup_key_server.h"
#include "admin/testing/fake_transport.h"
#include "connector/testing/manual_executor.h"
#include "engine/engine_core.h"
#include "engine/testing/held_executor.h"
#include "model/test_model_runner.h"
#include "store/memory_store.h"

namespace newmoon::testing {

// A memory store whose freeing runs at once.
struct TestStore {
  FakeClock clock;
  InlineExecutor executor;
  MemoryStore store{{.budget_bytes = 64 << 20, .free_pause = Duration{0}}, clock, executor};
  std::uint64_t blocks() { return store.stats()->blocks; }
};

class TestEngine {
 public:
  struct Options {
    TestModelRunner::Options model{};
    std::size_t ranks = 2;
    std::size_t blocks = 64;
    bool connector = true;
    bool kv_events = false;
    IdentityMode identity = IdentityMode::kDigest;
    std::string name_space = "run 7";
    std::string weight_version = "default";
    ResetMode reset_mode = ResetMode::kFence;
    std::uint64_t incarnation = 1;
  };

  TestEngine(Options options, KvStore& store) : options_(std::move(options)), store_(store) {
    arena_ = *KvArena::create(TestModelRunner::kv_layout(options_.model), options_.blocks);
    runner_ = std::make_unique<TestModelRunner>(options_.model, *arena_);
    SeededRandom random(options_.incarnation);
    fence_ = std::make_unique<Fence>(Fence::Identity{.name_space = options_.name_space,
                                                     .model = runner_->info().name,
                                                     .layout = runner_->info().layout,
                                                     .incarnation = draw_incarnation(random)});
    pool_ = std::make_unique<BlockPool>(BlockPool::Options{.block_count = options_.blocks,
                                                           .block_size = options_.model.block_size,
                                                           .enable_kv_events = options_.kv_events},
                                        fence_->epoch());
    if (options_.connector) make_connector();
    make_core();
    EXPECT_TRUE(core_->start().has_value());
  }
  ~TestEngine() {
    for (const auto& rank : ranks_) rank->worker->close();
    run_transfers();
  }

  EngineCore& core() { return *core_; }
  TestModelRunner& runner() { return *runner_; }
  HeldExecutor& executor() { return *executor_; }
  LocalExecutor& local_executor() { return *local_; }
  StoreWorker& worker(std::size_t rank) { return *ranks_.at(rank)->worker; }
  KvArena& arena() { return *arena_; }
  BlockPool& pool() { return *pool_; }
  StoreScheduler& external() { return *store_scheduler_; }
  FakeClock& clock() { return clock_; }
  const std::vector<ScopeId>& purged() const { return purged_; }
  Time in(Duration time) const { return clock_.now() + time; }

  bool hold_transfers = false;
  std::size_t silent_ranks = 0;  // of the admin channel: the last so many

  // --- requests ---
  RequestInput input(const RequestId& id, std::vector<Token> prompt, std::uint32_t max_tokens) {
    RequestInput input;
    input.id = id;
    input.prompt = std::move(prompt);
    input.max_tokens = max_tokens;
    return input;
  }
  void add(const RequestId& id, std::vector<Token> prompt, std::uint32_t max_tokens = 6) {
    add(input(id, std::move(prompt), max_tokens));
  }
  void add(RequestInput input) {
    tokens.erase(input.id);
    finished.erase(input.id);
    const Status status = core_->add_request(std::move(input));
    ASSERT_TRUE(status.has_value()) << to_string(status.error());
  }
  // Runs one request alone to its end.
  RequestOutput generate(const RequestId& id, std::vector<Token> prompt,
                         std::uint32_t max_tokens = 6) {
    add(id, std::move(prompt), max_tokens);
    run();
    return finished[id];
  }
  std::vector<Token> cold(std::uint64_t weights, const std::vector<Token>& prompt,
                          std::size_t count = 6) const {
    return TestModelRunner::cold_tokens(options_.model, weights, prompt, count);
  }

  // --- the loop ---
  void step() {
    for (RequestOutput& output : core_->step()) {
      for (const SampledToken& token : output.tokens) tokens[output.id].push_back(token.token);
      if (output.finished) finished[output.id] = std::move(output);
    }
    if (!hold_transfers) run_transfers();
  }
  // Until there is nothing to do, or for so many steps.
  void run(int steps_max = 500) {
    for (int i = 0; i < steps_max && core_->has_work(); ++i) step();
  }
  // Until a request has said so many tokens.
  void run_until(const RequestId& id, std::size_t count) {
    for (int i = 0; i < 100 && tokens[id].size() < count; ++i) step();
    ASSERT_EQ(tokens[id].size(), count);
  }
  void run_transfers() {
    for (const auto& rank : ranks_) {
      rank->send.run_all();
      rank->receive.run_all();
    }
  }
  // Steps until all saves and loads are reported.
  void settle_transfers() {
    for (int i = 0; i < 50 && core_->scheduler().has_pending_push_work(); ++i) step();
  }

  Status update(std::uint64_t weights, const std::string& version) {
    if (Status status = core_->start_weight_update(); !status) return status;
    const Status status = core_->update_weights(TestModelRunner::set_weights(weights));
    const Status finished_status = core_->finish_weight_update(version);
    return status ? finished_status : status;
  }
  PauseAnswer pause(PauseMode mode, bool clear_cache, Duration timeout = std::chrono::seconds(5)) {
    std::optional<PauseAnswer> answer;
    core_->pause_generation(mode, clear_cache, in(timeout),
                            [&](PauseAnswer given) { answer = std::move(given); });
    for (int i = 0; i < 500 && !answer; ++i) {
      step();
      clock_.advance(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(answer.has_value());
    return answer.value_or(PauseAnswer{});
  }

  std::map<RequestId, std::vector<Token>> tokens;
  std::map<RequestId, RequestOutput> finished;

 private:
  struct Rank {
    std::unique_ptr<BlockMemory> memory;
    ManualExecutor send;
    ManualExecutor receive;
    std::unique_ptr<StoreWorker> worker;
    std::unique_ptr<LookupKeyServer> server;
  };

  void make_connector() {
    const ModelInfo& info = runner_->info();
    std::vector<Shard> shards(options_.ranks);
    for (std::size_t r = 0; r < options_.ranks; ++r) shards[r].pp = static_cast<std::uint16_t>(r);
    for (std::size_t r = 0; r < options_.ranks; ++r) {
      auto rank = std::make_unique<Rank>();
      rank->memory = arena_->rank_view(r, options_.ranks);
      StoreWorker::Options worker;
      worker.rank = r;
      worker.shard = shards[r];
      worker.all_shards = shards;
      worker.layout = layout_id(info.layout);
      rank->worker = std::make_unique<StoreWorker>(worker, store_, *rank->memory, clock_,
                                                   rank->send, rank->receive);
      rank->server = std::make_unique<LookupKeyServer>(
          *rank->worker, LookupKeyServer::Options{.block_size = info.block_size, .limits = {}},
          inline_, inline_);
      ranks_.push_back(std::move(rank));
    }
    transport_ = std::make_unique<FakeTransport>(clock_, options_.ranks);
    transport_->on_send = [this](std::size_t peer, const Frames& frames) {
      if (peer + silent_ranks >= options_.ranks) return;
      ranks_[peer]->server->handle(
          frames, [this, peer](Frames reply) { transport_->deliver(peer, std::move(reply)); });
      if (!hold_transfers) run_transfers();
    };
    client_ = std::make_unique<LookupKeyClient>(*transport_, clock_, LookupKeyClient::Options{});
    store_scheduler_ = std::make_unique<StoreScheduler>(
        StoreScheduler::Options{.block_size = info.block_size, .reset_mode = options_.reset_mode},
        *fence_, *client_, *pool_);
    connector_.emplace(StoreConnector::for_scheduler(*store_scheduler_));
  }

  void make_core() {
    std::vector<StoreWorker*> workers;
    for (const auto& rank : ranks_) workers.push_back(rank->worker.get());
    local_ = std::make_unique<LocalExecutor>(LocalExecutor::Parts{
        .runner = *runner_, .workers = workers, .arena = arena_.get(), .clock = clock_});
    executor_ = std::make_unique<HeldExecutor>(*local_);
    EngineCore::Options core;
    core.scheduler.reset_mode = options_.reset_mode;
    core.identity = options_.identity;
    core.name_space = options_.name_space;
    core.weight_version = options_.weight_version;
    core_ = std::make_unique<EngineCore>(
        core, EngineCore::Parts{.scheduler = {.info = runner_->info(),
                                              .hasher = hasher_,
                                              .fence = *fence_,
                                              .pool = *pool_,
                                              .connector = connector_ ? &*connector_ : nullptr,
                                              .clock = clock_,
                                              .purge =
                                                  [this](const Scope& scope) {
                                                    purged_.push_back(scope.id());
                                                    (void)store_.purge_scope(scope.id(), true);
                                                  }},
                                .executor = *executor_});
  }

  const Options options_;
  KvStore& store_;
  FakeClock clock_;
  InlineExecutor inline_;
  BlockHasher hasher_{HashAlgo::kSha256Cbor, options_.model.block_size, "0"};
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<TestModelRunner> runner_;
  std::unique_ptr<Fence> fence_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<FakeTransport> transport_;
  std::unique_ptr<LookupKeyClient> client_;
  std::unique_ptr<StoreScheduler> store_scheduler_;
  std::optional<StoreConnector> connector_;
  std::unique_ptr<LocalExecutor> local_;
  std::unique_ptr<HeldExecutor> executor_;
  std::unique_ptr<EngineCore> core_;
  std::vector<ScopeId> purged_;
};

// `count` tokens that differ with `seed`.
inline std::vector<Token> test_prompt(int seed, std::size_t count) {
  SeededRandom random(static_cast<std::uint64_t>(seed));
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random.below(97));
  return tokens;
}

}  // namespace newmoon::testing
