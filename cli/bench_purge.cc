#include "cli/bench_purge.h"

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cli/bench_fill.h"
#include "cli/scope_report.h"
#include "cli/statistics.h"
#include "cli/store_address.h"
#include "store/make_store.h"

namespace newmoon {
namespace {

constexpr int kRounds = 3;
constexpr int kIdleLookups = 1000;  // a round
constexpr std::size_t kLookupBlocks = 64;
constexpr Duration kTimeout = std::chrono::seconds(30);
constexpr Duration kPollInterval = std::chrono::milliseconds(20);

// Scopes that no engine and no other run of the bench has.
ScopeId random_scope(Random& random) { return ScopeId{draw_incarnation(random).bytes}; }

class Bench {
 public:
  Bench(std::array<KvStore*, 2> lookups, KvStore& purges, Clock& clock, std::uint64_t keys)
      : lookups_(lookups), purges_(purges), clock_(clock), keys_(keys) {
    for (std::size_t i = 0; i < kLookupBlocks; ++i) asked_.push_back(numbered_hash(i));
  }

  Result<PurgeBenchRow> run() {
    Status done = fill_scope(*lookups_[0], live_, kLookupBlocks);
    for (int round = 0; done && round < kRounds; ++round) done = run_round();
    const Status left = purges_.purge_scope(live_, true);
    if (!done) return std::unexpected(done.error());
    if (!left) return std::unexpected(left.error());
    PurgeBenchRow row{.keys = keys_,
                      .lookup_p50_idle_us = percentile(idle_us_, 0.5),
                      .lookup_p99_idle_us = percentile(idle_us_, 0.99),
                      .lookup_p50_during_us = percentile(during_us_, 0.5),
                      .lookup_p99_during_us = percentile(during_us_, 0.99),
                      .purge_ms = median(purge_ms_),
                      .samples_idle = static_cast<int>(idle_us_.size()),
                      .samples_during = static_cast<int>(during_us_.size())};
    row.lookup_max_idle_us = percentile(idle_us_, 1);
    row.lookup_max_during_us = percentile(during_us_, 1);
    row.lookup_p99_ratio = row.lookup_p99_during_us / row.lookup_p99_idle_us;
    return row;
  }

 private:
  Status run_round() {
    const ScopeId scope = random_scope(random_);
    if (Status filled = fill_scope(*lookups_[0], scope, keys_); !filled) return filled;
    for (int i = 0; i < kIdleLookups; ++i) {
      if (Status looked = time_lookup(idle_us_); !looked) return looked;
    }
    std::atomic<bool> ended{false};
    Status purged;
    std::thread purger([&] {
      purged = purge(scope);
      ended = true;
    });
    Status looked;
    do {
      looked = time_lookup(during_us_);
    } while (looked && !ended);
    purger.join();
    return looked ? purged : looked;
  }

  Status time_lookup(std::vector<double>& samples) {
    const Shard shard;
    const Time start = clock_.now();
    const Result<std::size_t> hits =
        lookups_[turn_++ % lookups_.size()]->hit_prefix(live_, {&shard, 1}, asked_);
    samples.push_back(to_us(clock_.now() - start));
    if (!hits) return std::unexpected(hits.error());
    if (*hits != kLookupBlocks) return fail(Code::kInternal, "a lookup missed");
    return {};
  }

  Status purge(const ScopeId& scope) {
    const Time start = clock_.now();
    if (Status purged = purges_.purge_scope(scope, false); !purged) return purged;
    while (true) {
      const Result<StoreStats> stats = purges_.stats();
      if (!stats) return std::unexpected(stats.error());
      if (stats->unfinished_purges == 0) break;
      clock_.sleep_until(clock_.now() + kPollInterval);
    }
    purge_ms_.push_back(to_ms(clock_.now() - start));
    return {};
  }

  const std::array<KvStore*, 2> lookups_;
  std::size_t turn_ = 0;
  KvStore& purges_;
  Clock& clock_;
  const std::uint64_t keys_;
  SystemRandom random_;
  const ScopeId live_ = random_scope(random_);  // never purged; what the lookups ask for
  std::vector<BlockHash> asked_;
  std::vector<double> idle_us_;
  std::vector<double> during_us_;
  std::vector<double> purge_ms_;
};

}  // namespace

Result<PurgeBenchRow> bench_purge(const std::string& store, std::uint64_t keys) {
  SystemClock clock;
  ThreadExecutor executor("nm-store");
  const Result<StoreAddress> found = find_store(store, "", clock);
  if (!found) return std::unexpected(found.error());
  // Only one of the clients lends memory.
  const auto purges = open_shared_store(found->url, kTimeout, clock, executor);
  if (!purges) return std::unexpected(purges.error());
  const auto lookups = make_store(found->url, {.timeout = kTimeout}, clock, executor);
  if (!lookups) return std::unexpected(lookups.error());
  const auto others = open_shared_store(found->url, kTimeout, clock, executor);
  if (!others) return std::unexpected(others.error());
  return Bench({lookups->get(), others->get()}, **purges, clock, keys).run();
}

}  // namespace newmoon
