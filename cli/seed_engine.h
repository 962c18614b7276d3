// The engine that `newmoon seed` looks at: EngineStack with the toy model, over a store and
// ZeroMQ sockets, all real but the model, and wrapped only to be seen and to be broken.
// One thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cli/seed_trace.h"
#include "engine/engine_stack.h"
#include "model/test_model_runner.h"
#include "store/faulty_store.h"

namespace newmoon {

// What an engine has said to one request so far.
struct SeedGeneration {
  std::vector<Token> tokens;
  RequestOutput end;  // its `finished` says whether it has
};

class SeedEngine {
 public:
  struct Options {
    std::size_t ranks = 2;
    ResetMode reset_mode = ResetMode::kFence;
    IdentityMode identity = IdentityMode::kDigest;
    bool connector = true;
    std::string name_space = "seed";
    std::size_t layers = 2;  // of the model; as many as ranks at least
  };
  static constexpr std::uint64_t kFirstWeights = 1;
  static constexpr std::uint32_t kMaxTokens = 8;
  static constexpr Duration kIdle = std::chrono::microseconds(200);

  // `store` outlives the engine. kUnavailable, kBadRequest: as EngineStack::start().
  static Result<std::unique_ptr<SeedEngine>> start(const Options& options, KvStore& store,
                                                   SeedTrace& trace);

  EngineCore& core() { return stack_->core(); }
  EngineStack& stack() { return *stack_; }
  TracedStore& store() { return traced_; }
  FaultyStore& faults() { return faulty_; }
  void break_channel() { channel_is_broken_ = true; }
  Time in(Duration time) const { return clock_.now() + time; }
  Time now() const { return clock_.now(); }

  // No number of values, if the store cannot say.
  std::uint64_t values_in_store();
  // Polls until the store holds so many values, as what is purged goes in the
  // background; for 30 s at most. How many there are then.
  std::uint64_t wait_for_values(std::uint64_t count);

  Status add(const RequestId& id, const std::vector<Token>& prompt, std::uint32_t max_tokens);
  void step();
  void idle() { clock_.sleep_until(in(kIdle)); }
  // Runs requests to their end and saves until they are reported, for 60 s at most.
  void run();
  const SeedGeneration& generation(const RequestId& id) { return generations_[id]; }
  // One request alone, from its start to its end.
  const SeedGeneration& generate(const RequestId& id, const std::vector<Token>& prompt);

  // Pauses (abort), clears the caches on the way, and resumes.
  PauseAnswer pause_and_clear();
  // Start, update and finish, without a pause.
  Status update_weights(std::uint64_t weights);

  // What an engine says that has only ever held these weights.
  std::vector<Token> cold(std::uint64_t weights, const std::vector<Token>& prompt,
                          std::size_t count = kMaxTokens) const;
  // A prompt of 24 tokens (6 blocks), another for each number.
  static std::vector<Token> prompt(int number);
  std::size_t block_size() const { return static_cast<std::size_t>(model_.block_size); }

 private:
  SeedEngine(const Options& options, KvStore& store, SeedTrace& trace);
  Status open(SeedTrace& trace);

  const Options options_;
  const TestModelRunner::Options model_;
  mutable SystemClock clock_;
  SystemRandom random_;
  std::atomic<bool> channel_is_broken_ = false;
  KvStore& store_;
  FaultyStore faulty_;
  TracedStore traced_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<TestModelRunner> runner_;
  std::unique_ptr<EngineStack> stack_;
  std::map<RequestId, SeedGeneration> generations_;
};

}  // namespace newmoon
