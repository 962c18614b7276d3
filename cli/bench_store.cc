#include "cli/bench_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <span>

#include "base/clock.h"
#include "base/executor.h"
#include "cli/bench_fill.h"
#include "cli/statistics.h"
#include "store/memory_store.h"

namespace newmoon {
namespace {

constexpr int kRuns = 5;
// A block of 30 layers, K and V, in 60 fragments, and one more of what is left.
constexpr std::size_t kFragments = 61;
// What a run moves. Larger than the caches, so that both sides work from memory.
constexpr std::size_t kRunBytes = std::size_t{256} << 20;
// The two sides take turns within a run, so that both see the same caches and clock
// rate.
constexpr std::size_t kTurnBytes = std::size_t{8} << 20;
// The caller's blocks, taken in turn.
constexpr std::size_t kCallerBytes = std::size_t{64} << 20;

// Zeroed memory, of huge pages where the system has them, as the store's is.
class Region {
 public:
  explicit Region(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) std::abort();
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 1, bytes);
  }
  ~Region() { munmap(data_, bytes_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  MutableByteView at(std::size_t index, std::size_t bytes) const {
    return {static_cast<std::uint8_t*>(data_) + index * bytes, bytes};
  }

 private:
  std::size_t bytes_;
  void* data_;
};

struct CallerBlock {
  std::array<ConstFragment, kFragments> source;
  std::array<Fragment, kFragments> target;

  explicit CallerBlock(MutableByteView block) {
    const std::size_t step = block.size() / (kFragments - 1) / 64 * 64;
    for (std::size_t i = 0; i < kFragments; ++i) {
      target[i] = i + 1 < kFragments ? block.subspan(i * step, step) : block.subspan(i * step);
      source[i] = target[i];
    }
  }
};

// Of the processor, so that what else the machine does counts for neither side.
Duration thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

Key key_of(std::uint64_t number) { return {ScopeId{}, Shard{}, numbered_hash(number)}; }

// Both sides of one size: the store, full, and a ring of as many plain buffers.
class Bench {
 public:
  explicit Bench(std::size_t bytes)
      : bytes_(bytes),
        values_(kRunBytes / bytes),
        ring_(values_ * bytes),
        caller_(kCallerBytes),
        store_({.budget_bytes = kRunBytes + kRunBytes / 8}, clock_, executor_) {
    for (std::size_t i = 0; i < kCallerBytes / bytes; ++i) {
      blocks_.emplace_back(caller_.at(i, bytes));
    }
    put(2 * values_, 0, false);
  }

  StoreBenchRow row(const std::string& op, bool checksum) {
    const bool is_put = op == "put";
    std::array<double, kRuns> seen;
    std::array<double, kRuns> limit;
    const std::size_t turn = std::max<std::size_t>(1, kTurnBytes / bytes_);
    for (int run = 0; run < kRuns; ++run) {
      Duration seen_time{0};
      Duration limit_time{0};
      const std::uint64_t oldest = next_ - values_;
      for (std::size_t begin = 0; begin < values_; begin += turn) {
        const std::size_t end = std::min(values_, begin + turn);
        limit_time += time([&] { copy(is_put, begin, end, checksum); });
        seen_time += time([&] {
          is_put ? put(end - begin, begin, checksum) : get(oldest, begin, end, checksum);
        });
      }
      seen[run] = gb_per_s(seen_time);
      limit[run] = gb_per_s(limit_time);
    }
    const double gb = median(seen);
    const double limit_gb = median(limit);
    return {bytes_, op, checksum, gb, limit_gb, gb / limit_gb};
  }

 private:
  template <class Work>
  static Duration time(const Work& work) {
    const Duration start = thread_time();
    work();
    return thread_time() - start;
  }

  double gb_per_s(Duration duration) const {
    return static_cast<double>(values_ * bytes_) / static_cast<double>(duration.count());
  }

  CallerBlock& block(std::size_t i) { return blocks_[i % blocks_.size()]; }
  // Far from block(i): neither side may find what the other has just brought into
  // the caches.
  CallerBlock& other_block(std::size_t i) { return block(i + blocks_.size() / 2); }

  // The limit: buffers [begin, end) of the ring, from or to the caller's blocks.
  void copy(bool is_put, std::size_t begin, std::size_t end, bool checksum) {
    for (std::size_t i = begin; i < end; ++i) {
      if (is_put) {
        (void)gather(block(i).source, ring_.at(i, bytes_), checksum);
      } else {
        (void)scatter(ring_.at(i, bytes_), block(i).target, checksum);
      }
    }
  }
  // New values, so that old ones go.
  void put(std::size_t count, std::size_t first_block, bool checksum) {
    for (std::size_t i = 0; i < count; ++i) {
      const Key key = key_of(next_++);
      const CallerBlock& source = other_block(first_block + i);
      const PutItem item{key, make_header(key, {}, bytes_), source.source, checksum};
      if (!store_.put({&item, 1})[0]) std::abort();
    }
  }
  // Values [begin, end) behind `oldest`.
  void get(std::uint64_t oldest, std::size_t begin, std::size_t end, bool checksum) {
    for (std::size_t i = begin; i < end; ++i) {
      const GetItem item{key_of(oldest + i), other_block(i).target, checksum};
      if (!store_.get({&item, 1})[0]) std::abort();
    }
  }

  const std::size_t bytes_;
  const std::size_t values_;
  Region ring_;
  Region caller_;
  std::vector<CallerBlock> blocks_;
  SystemClock clock_;
  InlineExecutor executor_;
  MemoryStore store_;
  std::uint64_t next_ = 0;
};

}  // namespace

std::vector<StoreBenchRow> bench_store() {
  std::vector<StoreBenchRow> rows;
  for (const std::size_t bytes : {64 << 10, 360 << 10, 2 << 20}) {
    Bench bench(bytes);
    for (const char* op : {"put", "get"}) {
      for (const bool checksum : {false, true}) rows.push_back(bench.row(op, checksum));
    }
  }
  return rows;
}

}  // namespace newmoon
