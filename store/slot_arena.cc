#include "store/slot_arena.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace newmoon {
namespace {

constexpr std::size_t kLineBytes = 64;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Of a slab for slots of that size: about `target`, one slot at least. All of huge
// pages if that wastes little, since a tail of small pages slows copies down.
std::size_t slab_bytes(std::size_t slot_bytes, std::size_t target) {
  const std::size_t wanted = std::max<std::size_t>(1, target / slot_bytes);
  for (std::size_t slots = wanted; target >= PagePool::kHugePageBytes && slots > 0; --slots) {
    const std::size_t bytes = round_up(slots * slot_bytes, PagePool::kHugePageBytes);
    if (bytes - slots * slot_bytes <= bytes / 32) return bytes;
  }
  return PagePool::round_to_pages(wanted * slot_bytes);
}

}  // namespace

// Slots behind `fresh` were never handed out, so that their pages stay untouched;
// the free ones before it form a list through their first bytes.
struct SlotArena::Slab {
  SlotArena* arena = nullptr;
  PagePool::Chunk chunk;
  std::size_t slot_bytes = 0;
  std::size_t slots = 0;
  std::size_t fresh = 0;
  std::size_t live = 0;
  std::uint8_t* free_list = nullptr;
  std::size_t position = 0;  // in slabs_
  Slab* previous = nullptr;  // in its list of available_
  Slab* next = nullptr;

  bool full() const { return live == slots; }

  std::uint8_t* take() {
    ++live;
    if (free_list == nullptr) return chunk.data + slot_bytes * fresh++;
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

SlotArena::SlotArena(PagePool& pool, std::size_t slab_bytes_min, std::size_t slab_bytes_max)
    : pool_(pool), slab_bytes_min_(slab_bytes_min), slab_bytes_max_(slab_bytes_max) {}

SlotArena::~SlotArena() {
  while (release_slabs(64)) {
  }
}

std::size_t SlotArena::slot_bytes(std::size_t bytes) {
  const std::size_t unit = std::max(kLineBytes, std::bit_floor(bytes) / 32);
  return round_up(bytes, unit);
}

bool SlotArena::can_ever_hold(std::size_t bytes) const {
  return PagePool::round_to_pages(slot_bytes(bytes)) <= pool_.budget_bytes();
}

const SlotArena* SlotArena::owner(const Slot& slot) { return slot.slab->arena; }

std::optional<SlotArena::Slot> SlotArena::allocate(std::size_t bytes) {
  const std::size_t size = slot_bytes(bytes);
  MutexLock lock(mutex_);
  const auto found = available_.find(size);
  const bool none = found == available_.end() || found->second == nullptr;
  Slab* slab = none ? add_slab(size) : found->second;
  if (slab == nullptr) return std::nullopt;
  const Slot slot{slab->take(), slab};
  if (slab->full()) unlink_available(slab);
  return slot;
}

void SlotArena::free(const Slot& slot) noexcept { slot.slab->arena->give_back(slot); }

void SlotArena::give_back(const Slot& slot) {
  MutexLock lock(mutex_);
  Slab* slab = slot.slab;
  if (slab->full()) link_available(slab);
  slab->give_back(slot.data);
  if (slab->live > 0) return;
  unlink_available(slab);
  remove_slab(slab);
}

bool SlotArena::release_slabs(std::size_t count) noexcept {
  MutexLock lock(mutex_);
  available_.clear();
  if (slabs_.empty()) return false;
  for (; count > 0 && !slabs_.empty(); --count) {
    held_bytes_ -= slabs_.back()->chunk.bytes;
    pool_.free({&slabs_.back()->chunk, 1});
    slabs_.pop_back();
  }
  return true;
}

std::uint64_t SlotArena::held_bytes() const {
  MutexLock lock(mutex_);
  return held_bytes_;
}

// Where the budget is nearly used, a slab of one slot. It is available on return.
SlotArena::Slab* SlotArena::add_slab(std::size_t slot_bytes) {
  // What can throw, before pages are taken and anything refers to the slab.
  auto slab = std::make_unique<Slab>();
  available_.try_emplace(slot_bytes);
  if (slabs_.size() == slabs_.capacity()) slabs_.reserve(2 * slabs_.size() + 16);
  const std::size_t target =
      std::clamp(std::bit_floor(held_bytes_ / 4), slab_bytes_min_, slab_bytes_max_);
  std::optional<PagePool::Chunk> chunk = pool_.allocate(slab_bytes(slot_bytes, target));
  if (!chunk) chunk = pool_.allocate(PagePool::round_to_pages(slot_bytes));
  if (!chunk) return nullptr;
  slab->arena = this;
  slab->chunk = *chunk;
  slab->slot_bytes = slot_bytes;
  slab->slots = chunk->bytes / slot_bytes;
  slab->position = slabs_.size();
  slabs_.push_back(std::move(slab));
  held_bytes_ += chunk->bytes;
  link_available(slabs_.back().get());
  return slabs_.back().get();
}

void SlotArena::remove_slab(Slab* slab) {
  pool_.free({&slab->chunk, 1});
  held_bytes_ -= slab->chunk.bytes;
  const std::size_t position = slab->position;
  std::swap(slabs_[position], slabs_.back());
  slabs_[position]->position = position;
  slabs_.pop_back();
}

void SlotArena::link_available(Slab* slab) {
  Slab*& head = available_[slab->slot_bytes];
  slab->previous = nullptr;
  slab->next = head;
  if (head != nullptr) head->previous = slab;
  head = slab;
}

void SlotArena::unlink_available(Slab* slab) {
  (slab->previous == nullptr ? available_[slab->slot_bytes] : slab->previous->next) = slab->next;
  if (slab->next != nullptr) slab->next->previous = slab->previous;
}

}  // namespace newmoon
