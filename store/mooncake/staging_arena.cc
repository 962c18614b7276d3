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

bool StagingArena::take_free(std::uint64_t bytes, std::uint64_t& offset) {
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& piece) { return piece.second >= bytes; });
  if (found == free_.end()) return false;
  const auto [begin, room] = *found;
  free_.erase(found);
  if (room > bytes) free_.emplace(begin + bytes, room - bytes);
  offset = begin;
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
  const char place = 0;  // its address is this caller's in the queue
  MutexLock lock(mutex_);
  waiting_.push_back(&place);
  std::uint64_t offset = 0;
  bool taken = false;
  while (!(taken = waiting_.front() == &place && take_free(bytes, offset))) {
    const Duration left = deadline - clock_.now();
    if (left <= Duration::zero()) break;
    changed_.wait_for(mutex_, left);
  }
  std::erase(waiting_, &place);
  changed_.notify_all();
  if (!taken) return fail(Code::kDeadline, "mooncake: no staging memory came free in time");
  return std::make_unique<Region>(shared_from_this(), offset, bytes);
}

void StagingArena::give_back(std::uint64_t offset, std::uint64_t bytes) {
  MutexLock lock(mutex_);
  auto piece = free_.emplace(offset, bytes).first;
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
