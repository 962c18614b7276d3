#include "store/mooncake/staging_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

namespace newmoon {

Result<std::shared_ptr<StagingArena>> StagingArena::make(std::uint64_t bytes, Clock& clock) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(Code::kUnavailable,
                "mooncake: no memory for " + std::to_string(bytes) + " bytes of staging");
  }
  (void)madvise(memory, bytes, MADV_HUGEPAGE);  // faster copies where it is to be had
  return std::shared_ptr<StagingArena>(
      new StagingArena(static_cast<std::uint8_t*>(memory), bytes, clock));
}

StagingArena::StagingArena(std::uint8_t* memory, std::uint64_t bytes, Clock& clock)
    : memory_(memory), bytes_(bytes), clock_(clock) {
  free_.emplace(0, bytes);
}

StagingArena::~StagingArena() { munmap(memory_, bytes_); }

StagingArena::Region::Region(std::uint64_t bytes) {
  Pieces pieces;
  pieces.emplace(0, bytes);
  piece_ = pieces.extract(pieces.begin());
}

bool StagingArena::take_free(Region& region) {
  const std::uint64_t bytes = region.bytes();
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& piece) { return piece.second >= bytes; });
  if (found == free_.end()) return false;
  auto piece = free_.extract(found);
  region.piece_.key() = piece.key();
  region.arena_ = shared_from_this();
  piece.key() += bytes;
  piece.mapped() -= bytes;
  if (piece.mapped() > 0) free_.insert(std::move(piece));
  return true;
}

Result<std::unique_ptr<StagingArena::Region>> StagingArena::take(std::uint64_t bytes,
                                                                 Time deadline) {
  bytes = std::max<std::uint64_t>((bytes + kAlignment - 1) / kAlignment, 1) * kAlignment;
  if (bytes > bytes_) {
    return fail(Code::kBusy, "mooncake: a value of " + std::to_string(bytes) +
                                 " bytes does not fit the staging memory of " +
                                 std::to_string(bytes_));
  }
  std::unique_ptr<Region> region(new Region(bytes));
  MutexLock lock(mutex_);
  waiting_.push_back(region.get());
  bool taken = false;
  while (!(taken = waiting_.front() == region.get() && take_free(*region))) {
    const Duration left = deadline - clock_.now();
    if (left <= Duration::zero()) break;
    changed_.wait_for(mutex_, left);
  }
  std::erase(waiting_, region.get());
  changed_.notify_all();
  if (!taken) return fail(Code::kDeadline, "mooncake: no staging memory came free in time");
  return region;
}

void StagingArena::give_back(Pieces::node_type given) noexcept {
  MutexLock lock(mutex_);
  const auto piece = free_.insert(std::move(given)).position;
  const auto [offset, bytes] = *piece;
  if (const auto next = std::next(piece); next != free_.end() && next->first == offset + bytes) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece != free_.begin()) {
    const auto before = std::prev(piece);
    if (before->first + before->second == offset) {
      before->second += piece->second;
      free_.erase(piece);
    }
  }
  changed_.notify_all();
}

}  // namespace newmoon
