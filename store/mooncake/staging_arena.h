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
  using Pieces = std::map<std::uint64_t, std::uint64_t>;  // offset -> bytes

  // Belongs to its holder; goes back when it ends. Keeps the arena alive.
  class Region {
   public:
    ~Region() {
      if (arena_ != nullptr) arena_->give_back(std::move(piece_));
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    std::uint8_t* data() const { return arena_->memory_ + piece_.key(); }
    std::uint64_t bytes() const { return piece_.mapped(); }

   private:
    friend class StagingArena;
    explicit Region(std::uint64_t bytes);

    std::shared_ptr<StagingArena> arena_;  // nullptr: it is not taken yet
    Pieces::node_type piece_;              // what give_back() needs, so that it allocates nothing
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
  void give_back(Pieces::node_type piece) noexcept;
  // Gives the region a place; false: there is none. Neither this nor giving back can run out of
  // memory, which would lose the room for ever.
  bool take_free(Region& region) NM_REQUIRES(mutex_);

  std::uint8_t* const memory_;
  const std::uint64_t bytes_;
  Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  Pieces free_ NM_GUARDED_BY(mutex_);
  std::deque<const Region*> waiting_ NM_GUARDED_BY(mutex_);  // first come, first served
};

}  // namespace newmoon
