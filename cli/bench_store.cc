#include "cli/bench_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>

#include "base/clock.h"
#include "base/executor.h"
#include "store/memory_store.h"

namespace newmoon {
namespace {

constexpr int kRuns = 5;
// A block of 30 layers, K and V, in 60 fragments, and one more of what is left.
constexpr std::size_t kFragments = 61;
// What a run moves. Larger than the caches, so that both sides work from memory.
constexpr std::size_t kRunBytes = std::size_t{256} << 20;
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

Key key_of(std::uint64_t number) {
  std::array<std::uint8_t, 32> hash{};
  store_le(hash.data(), number * 0x9e3779b97f4a7c15ULL);
  return {ScopeId{}, Shard{}, BlockHash(hash)};
}

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
    put_all(false);
    put_all(false);
  }

  StoreBenchRow row(const std::string& op, bool checksum) {
    const bool is_put = op == "put";
    std::array<double, kRuns> seen;
    std::array<double, kRuns> limit;
    for (int i = 0; i < kRuns; ++i) {
      limit[i] = gb_per_s([&] { is_put ? gather_all(checksum) : scatter_all(checksum); });
      seen[i] = gb_per_s([&] { is_put ? put_all(checksum) : get_all(checksum); });
    }
    std::ranges::sort(seen);
    std::ranges::sort(limit);
    const double gb = seen[kRuns / 2];
    const double limit_gb = limit[kRuns / 2];
    return {bytes_, op, checksum, gb, limit_gb, gb / limit_gb};
  }

 private:
  double gb_per_s(const std::function<void()>& work) {
    const Time start = clock_.now();
    work();
    const auto seconds = std::chrono::duration<double>(clock_.now() - start).count();
    return static_cast<double>(values_ * bytes_) / seconds / 1e9;
  }

  CallerBlock& block(std::size_t i) { return blocks_[i % blocks_.size()]; }

  void gather_all(bool checksum) {
    for (std::size_t i = 0; i < values_; ++i) {
      (void)gather(block(i).source, ring_.at(i, bytes_), checksum);
    }
  }
  void scatter_all(bool checksum) {
    for (std::size_t i = 0; i < values_; ++i) {
      (void)scatter(ring_.at(i, bytes_), block(i).target, checksum);
    }
  }
  // New values, so that old ones go.
  void put_all(bool checksum) {
    for (std::size_t i = 0; i < values_; ++i) {
      const Key key = key_of(next_++);
      const PutItem item{key, make_header(key, {}, bytes_), block(i).source, checksum};
      if (!store_.put({&item, 1})[0]) std::abort();
    }
  }
  // The newest ones, oldest first.
  void get_all(bool checksum) {
    for (std::size_t i = 0; i < values_; ++i) {
      const GetItem item{key_of(next_ - values_ + i), block(i).target, checksum};
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
