// The memory of a memory store: slabs of equal slots under one byte budget. The
// budget counts what is mapped, whether or not a slot is in use, so that the
// process never holds more than it was given.
//
// Freed slots stay mapped and are used again first: a fresh page costs more to
// fault in than to copy into. A slab that became empty is unmapped only when
// another slot size needs its bytes. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"

namespace newmoon {

class SlabPool {
 public:
  struct Slab;
  struct Slot {
    std::uint8_t* data = nullptr;  // aligned to 64 bytes; contents undefined
    Slab* slab = nullptr;
  };

  explicit SlabPool(std::uint64_t budget_bytes);
  ~SlabPool();  // unmaps everything, slots in use included
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // nullopt: no room within the budget now. REQUIRES: bytes > 0.
  std::optional<Slot> allocate(std::size_t bytes);
  void free(std::span<const Slot> slots);
  // Whether allocate(bytes) succeeds while nothing else is allocated.
  bool can_ever_hold(std::size_t bytes) const;

  std::uint64_t budget_bytes() const { return budget_bytes_; }
  // Mapped bytes; never over the budget.
  std::uint64_t held_bytes() const;
  // What allocate(bytes) really takes: sizes are rounded up by at most 1/32 above
  // 2 KiB, else to 64 bytes, so that a few sizes serve all values.
  static std::size_t slot_bytes(std::size_t bytes);

 private:
  // The slabs of one slot size that have a free slot.
  using Available = std::vector<Slab*>;

  Slab* map_slab(std::size_t slot_bytes) NM_REQUIRES(mutex_);
  bool make_room(std::uint64_t bytes) NM_REQUIRES(mutex_);
  void unmap_empty_slabs(std::uint64_t bytes) NM_REQUIRES(mutex_);
  void unmap(Slab* slab) NM_REQUIRES(mutex_);
  void free_one(const Slot& slot) NM_REQUIRES(mutex_);

  const std::uint64_t budget_bytes_;
  const std::uint64_t slab_target_bytes_;
  mutable Mutex mutex_;
  std::uint64_t held_bytes_ NM_GUARDED_BY(mutex_) = 0;
  std::size_t empty_slabs_ NM_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::size_t, Available> available_ NM_GUARDED_BY(mutex_);
  std::unordered_map<Slab*, std::unique_ptr<Slab>> slabs_ NM_GUARDED_BY(mutex_);
};

}  // namespace newmoon
