#include "cli/bench_reset.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "cli/bench_fill.h"
#include "cli/statistics.h"
#include "engine/engine_stack.h"
#include "model/test_model_runner.h"
#include "store/memory_store.h"

namespace newmoon {
namespace {

constexpr int kResets = 200;
constexpr int kLookups = 1500;
constexpr int kLookupBlocks = 64;
constexpr std::uint64_t kBytesAKey = 320;  // budget; the store says what a value takes
constexpr std::uint64_t kSpareBytes = std::uint64_t{256} << 20;

double resident_gib() {
  std::uint64_t total_pages = 0;
  std::uint64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) /
         static_cast<double>(std::uint64_t{1} << 30);
}

// One engine on a toy model, and a second client for the lookups.
class Bench {
 public:
  explicit Bench(KvStore& store) : store_(store) {}

  Status start();
  Result<ResetBenchRow> run(std::uint64_t keys);
  // Fills the current scope, then times resets, the first of which leaves it.
  Result<std::vector<double>> round(std::uint64_t keys, int resets);

 private:
  Status fill_current(std::uint64_t keys) {
    return fill_scope(store_, *stack_->core().fence().scope_id(), keys);
  }
  Result<std::vector<double>> time_resets(int resets);
  Result<double> time_reset();
  Result<double> time_lookup();
  // The p99 of lookups; stops early when `until` says so.
  template <class Until>
  Result<double> lookup_p99(Until until);
  bool freeing() { return store_.stats()->bytes_to_free > 0; }

  KvStore& store_;
  SystemClock clock_;
  SystemRandom random_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<TestModelRunner> runner_;
  std::unique_ptr<EngineStack> stack_;
  std::unique_ptr<ZmqClientTransport> transport_;
  std::unique_ptr<LookupKeyClient> client_;
  ScopeId live_scope_;  // never left; what the lookups ask for
  std::uint64_t lookups_ = 0;
};

Status Bench::start() {
  const TestModelRunner::Options toy;
  Result<std::unique_ptr<KvArena>> arena = KvArena::create(TestModelRunner::kv_layout(toy), 16);
  if (!arena) return std::unexpected(arena.error());
  arena_ = std::move(*arena);
  runner_ = std::make_unique<TestModelRunner>(toy, *arena_);
  EngineStack::Options options;
  options.core.identity = IdentityMode::kUnique;
  Result<std::unique_ptr<EngineStack>> stack = EngineStack::start(options, {.runner = *runner_,
                                                                            .arena = *arena_,
                                                                            .store = &store_,
                                                                            .clock = clock_,
                                                                            .random = random_,
                                                                            .wrap_transport = {}});
  if (!stack) return std::unexpected(stack.error());
  stack_ = std::move(*stack);
  auto transport = ZmqClientTransport::connect({stack_->endpoint(0)}, clock_);
  if (!transport) return std::unexpected(transport.error());
  transport_ = std::move(*transport);
  client_ = std::make_unique<LookupKeyClient>(*transport_, clock_, LookupKeyClient::Options{});
  live_scope_.bytes.fill(0x5a);
  return fill_scope(store_, live_scope_, kLookupBlocks);
}

Result<double> Bench::time_reset() {
  const Time start = clock_.now();
  const CacheResetAnswer answer = stack_->core().reset_caches(start + std::chrono::seconds(5));
  const double us = to_us(clock_.now() - start);
  if (!answer.success || answer.degraded) {
    return fail(Code::kInternal, "a reset failed: " + answer.error);
  }
  return us;
}

Result<double> Bench::time_lookup() {
  LookupRequest request;
  request.scope = live_scope_;
  request.epoch = ~Epoch{0} >> 1;  // of no engine: never below the floor
  request.num_tokens = kLookupBlocks * 4 + 1;
  for (std::uint64_t i = 0; i < kLookupBlocks; ++i) {
    request.block_hashes.push_back(numbered_hash(i));
  }
  const std::string id = std::to_string(lookups_++);
  const Time start = clock_.now();
  while (true) {
    const std::optional<Result<std::uint32_t>> hit = client_->lookup(id, request);
    if (hit && !*hit) return std::unexpected(hit->error());
    if (hit && **hit != kLookupBlocks * 4) return fail(Code::kInternal, "a lookup missed");
    if (hit) break;
    transport_->wait(start + std::chrono::seconds(2));
  }
  const double us = to_us(clock_.now() - start);
  client_->discard(id);
  return us;
}

template <class Until>
Result<double> Bench::lookup_p99(Until until) {
  std::vector<double> samples;
  for (int i = 0; i < kLookups && !(i >= 20 && until()); ++i) {
    const Result<double> us = time_lookup();
    if (!us) return us;
    samples.push_back(*us);
  }
  return percentile(samples, 0.99);
}

Result<std::vector<double>> Bench::time_resets(int resets) {
  std::vector<double> acks;
  for (int i = 0; i < resets; ++i) {
    const Result<double> us = time_reset();
    if (!us) return std::unexpected(us.error());
    acks.push_back(*us);
  }
  return acks;
}

Result<std::vector<double>> Bench::round(std::uint64_t keys, int resets) {
  if (const Status filled = fill_current(keys); !filled) return std::unexpected(filled.error());
  return time_resets(resets);
}

Result<ResetBenchRow> Bench::run(std::uint64_t keys) {
  ResetBenchRow row{.keys = keys};
  const int rounds = keys > 1'000'000 ? 1 : 10;
  std::vector<double> acks;
  for (int i = 0; i < rounds; ++i) {
    if (const Status filled = fill_current(keys); !filled) return std::unexpected(filled.error());
    row.resident_gib = std::max(row.resident_gib, resident_gib());
    if (i == 0) {
      const Result<double> idle = lookup_p99([] { return false; });
      if (!idle) return std::unexpected(idle.error());
      row.lookup_p99_idle_us = *idle;
    }
    const Result<std::vector<double>> times = time_resets(kResets / rounds);
    if (!times) return std::unexpected(times.error());
    acks.insert(acks.end(), times->begin(), times->end());
    row.reset_ack_first_us_max = std::max(row.reset_ack_first_us_max, times->front());
  }
  const Result<double> busy = lookup_p99([this] { return !freeing(); });
  if (!busy) return std::unexpected(busy.error());
  row.lookup_p99_during_free_ratio = *busy / row.lookup_p99_idle_us;
  row.reset_ack_p50_us = percentile(acks, 0.5);
  row.reset_ack_p99_us = percentile(acks, 0.99);
  row.samples = static_cast<int>(acks.size());
  return row;
}

}  // namespace

Result<std::vector<double>> time_resets(KvStore& store, std::uint64_t keys, int resets) {
  Bench bench(store);
  if (const Status started = bench.start(); !started) return std::unexpected(started.error());
  return bench.round(keys, resets);
}

Result<std::vector<ResetBenchRow>> bench_reset(std::span<const std::uint64_t> keys) {
  std::vector<ResetBenchRow> rows;
  for (const std::uint64_t count : keys) {
    SystemClock clock;
    ThreadExecutor frees("nm-frees");
    MemoryStore store({.budget_bytes = count * kBytesAKey + kSpareBytes}, clock, frees);
    Bench bench(store);
    if (const Status started = bench.start(); !started) return std::unexpected(started.error());
    Result<ResetBenchRow> row = bench.run(count);
    if (!row) return std::unexpected(row.error());
    rows.push_back(*row);
  }
  return rows;
}

}  // namespace newmoon
