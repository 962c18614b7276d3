// Slots of equal size cut out of slabs, one slab a chunk of pages. A memory store
// has one arena for large values, and each scope one of its own for small values,
// so that millions of them are freed with their slabs and not one by one.
// Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "store/page_pool.h"

namespace newmoon {

class SlotArena {
 public:
  struct Slab;
  struct Slot {
    std::uint8_t* data = nullptr;  // aligned to 64 bytes; contents undefined
    Slab* slab = nullptr;
  };

  // Slabs start at `slab_bytes_min` and grow with the arena to `slab_bytes_max`; a
  // larger slot has a slab to itself. `pool` must outlive the arena.
  SlotArena(PagePool& pool, std::size_t slab_bytes_min, std::size_t slab_bytes_max);
  ~SlotArena();  // gives every slab back, slots in use included
  SlotArena(const SlotArena&) = delete;
  SlotArena& operator=(const SlotArena&) = delete;

  // nullopt: the pool has no room now. REQUIRES: bytes > 0.
  std::optional<Slot> allocate(std::size_t bytes);
  // Into the arena that it came from. Takes no memory, like all that frees here.
  static void free(const Slot& slot) noexcept;
  static const SlotArena* owner(const Slot& slot);

  // Gives up to `count` slabs back to the pool with all their slots, in use or not.
  // False: none is left.
  bool release_slabs(std::size_t count) noexcept;

  std::uint64_t held_bytes() const;
  // What allocate(bytes) really takes: sizes are rounded up by at most 1/32 above
  // 2 KiB, else to 64 bytes, so that a few sizes serve all values.
  static std::size_t slot_bytes(std::size_t bytes);
  // Whether allocate(bytes) succeeds while the pool holds nothing else.
  bool can_ever_hold(std::size_t bytes) const;

 private:
  Slab* add_slab(std::size_t slot_bytes) NM_REQUIRES(mutex_);
  void remove_slab(Slab* slab) NM_REQUIRES(mutex_);
  void link_available(Slab* slab) NM_REQUIRES(mutex_);
  void unlink_available(Slab* slab) NM_REQUIRES(mutex_);
  void give_back(const Slot& slot);

  PagePool& pool_;
  const std::size_t slab_bytes_min_;
  const std::size_t slab_bytes_max_;
  mutable Mutex mutex_;
  std::uint64_t held_bytes_ NM_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Slab>> slabs_ NM_GUARDED_BY(mutex_);
  // By slot size: the first of a list of slabs that have a free slot.
  std::unordered_map<std::size_t, Slab*> available_ NM_GUARDED_BY(mutex_);
};

}  // namespace newmoon
