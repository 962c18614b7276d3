#include "store/slab_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace newmoon {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLine = 64;
constexpr std::uint64_t kSlabTargetMin = 16 << 10;
constexpr std::uint64_t kSlabTargetMax = 8 << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Anonymous memory; from 2 MiB on aligned so that it can be made of huge pages,
// which fault in many times faster. nullptr: the system has none.
std::uint8_t* map_pages(std::size_t bytes) {
  const std::size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* raw = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::uint8_t*>(raw);
  if (slack == 0) return start;
  auto* aligned =
      reinterpret_cast<std::uint8_t*>(round_up(reinterpret_cast<std::uintptr_t>(start), kHugePage));
  const std::size_t before = static_cast<std::size_t>(aligned - start);
  if (before > 0) munmap(start, before);
  if (slack > before) munmap(aligned + bytes, slack - before);
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

}  // namespace

// Slots behind `fresh` were never handed out, so that their pages stay untouched;
// the free ones before it form a list through their first bytes.
struct SlabPool::Slab {
  std::uint8_t* data = nullptr;
  std::size_t slot_bytes = 0;
  std::size_t mapped_bytes = 0;
  std::uint32_t slots = 0;
  std::uint32_t fresh = 0;
  std::uint32_t live = 0;
  std::uint8_t* free_list = nullptr;

  bool full() const { return live == slots; }

  std::uint8_t* take() {
    ++live;
    if (free_list == nullptr) return data + slot_bytes * fresh++;
    std::uint8_t* slot = free_list;
    std::memcpy(&free_list, slot, sizeof free_list);
    return slot;
  }

  void give_back(std::uint8_t* slot) {
    --live;
    std::memcpy(slot, &free_list, sizeof free_list);
    free_list = slot;
  }
};

SlabPool::SlabPool(std::uint64_t budget_bytes)
    : budget_bytes_(budget_bytes),
      slab_target_bytes_(std::clamp(budget_bytes / 64, kSlabTargetMin, kSlabTargetMax)) {}

SlabPool::~SlabPool() {
  for (const auto& [slab, owner] : slabs_) munmap(slab->data, slab->mapped_bytes);
}

std::size_t SlabPool::slot_bytes(std::size_t bytes) {
  const std::size_t unit = std::max(kLine, std::bit_floor(bytes) / 32);
  return round_up(bytes, unit);
}

bool SlabPool::can_ever_hold(std::size_t bytes) const {
  return round_up(slot_bytes(bytes), kPage) <= budget_bytes_;
}

std::optional<SlabPool::Slot> SlabPool::allocate(std::size_t bytes) {
  const std::size_t size = slot_bytes(bytes);
  MutexLock lock(mutex_);
  Available& available = available_[size];
  if (available.empty()) {
    Slab* slab = map_slab(size);
    if (slab == nullptr) return std::nullopt;
    available.push_back(slab);
  }
  Slab* slab = available.back();
  if (slab->live == 0) --empty_slabs_;
  Slot slot{slab->take(), slab};
  if (slab->full()) available.pop_back();
  return slot;
}

void SlabPool::free(std::span<const Slot> slots) {
  MutexLock lock(mutex_);
  for (const Slot& slot : slots) free_one(slot);
}

void SlabPool::free_one(const Slot& slot) {
  Slab* slab = slot.slab;
  if (slab->full()) available_[slab->slot_bytes].push_back(slab);
  slab->give_back(slot.data);
  if (slab->live == 0) ++empty_slabs_;
}

std::uint64_t SlabPool::held_bytes() const {
  MutexLock lock(mutex_);
  return held_bytes_;
}

// A slab as large as the target, or, where the budget is nearly used, as large as
// still fits; of one slot at least. Counted as empty until its first take().
SlabPool::Slab* SlabPool::map_slab(std::size_t slot_bytes) {
  const std::size_t wanted = std::max<std::size_t>(1, slab_target_bytes_ / slot_bytes);
  if (!make_room(round_up(wanted * slot_bytes, kPage)) && !make_room(round_up(slot_bytes, kPage))) {
    return nullptr;
  }
  const std::uint64_t room = (budget_bytes_ - held_bytes_) / kPage * kPage;
  const std::size_t slots = std::min<std::size_t>(wanted, room / slot_bytes);
  auto slab = std::make_unique<Slab>();
  slab->slot_bytes = slot_bytes;
  slab->mapped_bytes = round_up(slots * slot_bytes, kPage);
  slab->slots = static_cast<std::uint32_t>(slots);
  slab->data = map_pages(slab->mapped_bytes);
  if (slab->data == nullptr) return nullptr;
  held_bytes_ += slab->mapped_bytes;
  ++empty_slabs_;
  Slab* result = slab.get();
  slabs_.emplace(result, std::move(slab));
  return result;
}

bool SlabPool::make_room(std::uint64_t bytes) {
  if (bytes > budget_bytes_) return false;
  if (held_bytes_ + bytes > budget_bytes_) unmap_empty_slabs(held_bytes_ + bytes - budget_bytes_);
  return held_bytes_ + bytes <= budget_bytes_;
}

// Until `bytes` came back or no slab is empty. Rare: only where the sizes of the
// values change, or a purge left slabs that a smaller budget share now needs.
void SlabPool::unmap_empty_slabs(std::uint64_t bytes) {
  const std::uint64_t before = held_bytes_;
  for (auto& [size, available] : available_) {
    if (empty_slabs_ == 0) return;
    std::erase_if(available, [&](Slab* slab) NM_REQUIRES(mutex_) {
      if (slab->live > 0 || before - held_bytes_ >= bytes) return false;
      unmap(slab);
      return true;
    });
  }
}

void SlabPool::unmap(Slab* slab) {
  munmap(slab->data, slab->mapped_bytes);
  held_bytes_ -= slab->mapped_bytes;
  --empty_slabs_;
  slabs_.erase(slab);
}

}  // namespace newmoon
