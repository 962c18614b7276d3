// Engines of production objects on a real Mooncake store, and upstream's client beside them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/seed_engine.h"
#include "store/mooncake/config.h"
#include "store/mooncake/mooncake_store.h"
#include "store/testing/mooncake_master.h"
#include "tests/mooncake/upstream_client.h"

namespace newmoon::testing {

// An engine with a client of its own, as each process has.
struct MooncakeEngine {
  std::unique_ptr<KvStore> store;
  std::unique_ptr<SeedEngine> engine;

  SeedEngine* operator->() const { return engine.get(); }
};

class MooncakeFaultsTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kRanks = 2;
  static constexpr std::uint64_t kOld = SeedEngine::kFirstWeights;
  static constexpr std::uint64_t kNew = 2;
  // Blocks of a prompt and its answer that are full, a value a rank each.
  static constexpr std::uint64_t kValues = 7 * kRanks;
  static constexpr std::uint64_t kHit = 20;  // tokens of a prompt, but for the last block

  std::unique_ptr<MooncakeStore> join(MooncakeOptions options = {},
                                      const std::string& lends = "32MB") {
    Result<MooncakeConfig> config = load_mooncake_config(
        master_.url() + "&local_buffer_size=16MB&global_segment_size=" + lends);
    if (!config) throw std::runtime_error(to_string(config.error()));
    options.staging_bytes_max = 8 << 20;
    options.start_timeout = kTestStartTimeout;
    auto store = MooncakeStore::open(*config, clock_, options);
    if (!store) throw std::runtime_error(to_string(store.error()));
    return std::move(*store);
  }
  MooncakeEngine start(SeedEngine::Options options = {}, MooncakeOptions store = {}) {
    return start_on(join(std::move(store)), options);
  }
  MooncakeEngine start_on(std::unique_ptr<KvStore> store, const SeedEngine::Options& options) {
    auto engine = SeedEngine::start(options, *store, trace_);
    if (!engine) throw std::runtime_error(to_string(engine.error()));
    return {std::move(store), std::move(*engine)};
  }

  // Runs a prompt, which must be answered as by an engine that only ever held `weights`.
  // The tokens found in the store.
  std::uint64_t ask(const MooncakeEngine& engine, std::uint64_t weights, int prompt = 0) {
    const std::vector<Token> tokens = SeedEngine::prompt(prompt);
    const SeedGeneration& generation =
        engine->generate("request " + std::to_string(++requests_), tokens);
    EXPECT_EQ(generation.tokens, engine->cold(weights, tokens)) << generation.end.error;
    return generation.end.counters.external_hit_tokens;
  }
  // The engine's own cache forgets; what the store has under its weights stays.
  void forget(const MooncakeEngine& engine) {
    EXPECT_TRUE(engine->core().reset_prefix_cache(true, false, soon(engine)).success);
  }
  std::uint64_t ask_store(const MooncakeEngine& engine, std::uint64_t weights, int prompt = 0) {
    forget(engine);
    return ask(engine, weights, prompt);
  }
  CacheResetAnswer reset(const MooncakeEngine& engine, Duration timeout = std::chrono::seconds(5)) {
    const Time started = engine->now();
    CacheResetAnswer answer = engine->core().reset_caches(engine->in(timeout));
    EXPECT_LT(engine->now() - started, timeout + std::chrono::seconds(2)) << "W5: one deadline";
    return answer;
  }
  static Time soon(const MooncakeEngine& engine) { return engine->in(std::chrono::seconds(5)); }
  bool eventually(const std::function<bool()>& holds,
                  Duration patience = std::chrono::seconds(20)) {
    const Time deadline = clock_.now() + patience;
    while (!holds()) {
      if (clock_.now() >= deadline) return false;
      clock_.sleep_until(clock_.now() + std::chrono::milliseconds(50));
    }
    return true;
  }
  void wait_for_held_put(const MooncakeEngine& engine, const std::string& hold, std::size_t count) {
    ASSERT_TRUE(eventually([&] {
      engine->step();
      return engine->faults().waiting_at(hold) >= count;
    }));
  }
  // Of Newmoon's blocks in the store, in no order.
  std::vector<std::string> keys() {
    Result<std::vector<std::string>> keys = http_.keys(clock_.now() + std::chrono::seconds(5));
    if (!keys) throw std::runtime_error(to_string(keys.error()));
    std::erase_if(*keys, [](const std::string& key) { return !parse_key(key); });
    return std::move(*keys);
  }

  SystemClock clock_;
  SeedTrace trace_;
  // Long enough for a test to look at a put that is stuck, however busy the machine.
  MooncakeMaster master_ = start_mooncake_master(
      clock_, {"--put_start_discard_timeout_sec=5", "--put_start_release_timeout_sec=8"});
  MasterHttp http_{"127.0.0.1:" + std::to_string(master_.metrics_port()), clock_};
  UpstreamClient upstream_{master_};
  int requests_ = 0;
};

}  // namespace newmoon::testing
