// Memory that Mooncake may transfer from and to: one mapping, registered once, handed
// out in contiguous regions. Bounded: who finds no room waits. Any thread may call.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"

namespace newmoon {

class StagingArena : public std::enable_shared_from_this<StagingArena> {
 public:
  // Belongs to its holder; goes back when it ends. Keeps the arena alive.
  class Region {
   public:
    Region(std::shared_ptr<StagingArena> arena, std::uint64_t offset, std::uint64_t bytes)
        : arena_(std::move(arena)), offset_(offset), bytes_(bytes) {}
    ~Region() { arena_->give_back(offset_, bytes_); }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    std::uint8_t* data() const { return arena_->memory_ + offset_; }
    std::uint64_t bytes() const { return bytes_; }

   private:
    std::shared_ptr<StagingArena> arena_;
    std::uint64_t offset_;
    std::uint64_t bytes_;
  };

  static constexpr std::uint64_t kAlignment = 64;

  // kUnavailable: no memory. `clock`: SystemClock, must outlive the arena's users.
  static Result<std::shared_ptr<StagingArena>> make(std::uint64_t bytes, Clock& clock);
  ~StagingArena();

  // In the order of the calls. kBusy: more than there is in all. kDeadline: no room came
  // free in time.
  Result<std::unique_ptr<Region>> take(std::uint64_t bytes, Time deadline);

  std::uint8_t* data() const { return memory_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  StagingArena(std::uint8_t* memory, std::uint64_t bytes, Clock& clock);
  void give_back(std::uint64_t offset, std::uint64_t bytes);
  // Where `bytes` are free, taken; false: nowhere.
  bool take_free(std::uint64_t bytes, std::uint64_t& offset) NM_REQUIRES(mutex_);

  std::uint8_t* const memory_;
  const std::uint64_t bytes_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, std::uint64_t> free_ NM_GUARDED_BY(mutex_);  // offset -> bytes
  std::deque<const void*> waiting_ NM_GUARDED_BY(mutex_);              // first come, first served
};

}  // namespace newmoon
