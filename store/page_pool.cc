#include "store/page_pool.h"

#include <sys/mman.h>

#include <cstring>

namespace newmoon {
namespace {

constexpr std::size_t kHugePageBytes = PagePool::kHugePageBytes;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Anonymous memory; from 2 MiB on aligned so that it can be made of huge pages,
// which fault in many times faster. nullptr: the system has none.
std::uint8_t* map_pages(std::size_t bytes) {
  const std::size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  void* raw = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::uint8_t*>(raw);
  if (slack == 0) return start;
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t before = round_up(address, kHugePageBytes) - address;
  std::uint8_t* aligned = start + before;
  if (before > 0) munmap(start, before);
  if (slack > before) munmap(aligned + bytes, slack - before);
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

std::uint8_t* take_first(std::uint8_t*& first) {
  std::uint8_t* taken = first;
  std::memcpy(&first, taken, sizeof first);
  return taken;
}

}  // namespace

PagePool::~PagePool() {
  for (auto& [bytes, first] : idle_) {
    while (first != nullptr) munmap(take_first(first), bytes);
  }
}

std::size_t PagePool::round_to_pages(std::size_t bytes) { return round_up(bytes, kPageBytes); }

std::optional<PagePool::Chunk> PagePool::allocate(std::size_t bytes) {
  MutexLock lock(mutex_);
  std::uint8_t*& idle = idle_.try_emplace(bytes, nullptr).first->second;
  if (idle != nullptr) return Chunk{take_first(idle), bytes};
  if (!make_room(bytes)) return std::nullopt;
  std::uint8_t* data = map_pages(bytes);
  if (data == nullptr) return std::nullopt;
  held_bytes_ += bytes;
  return Chunk{data, bytes};
}

void PagePool::free(std::span<const Chunk> chunks) noexcept {
  MutexLock lock(mutex_);
  for (const Chunk& chunk : chunks) {
    std::uint8_t*& first = idle_.find(chunk.bytes)->second;
    std::memcpy(chunk.data, &first, sizeof first);
    first = chunk.data;
  }
}

std::uint64_t PagePool::held_bytes() const {
  MutexLock lock(mutex_);
  return held_bytes_;
}

// Unmaps idle chunks as far as needed. Only where the sizes asked for change.
bool PagePool::make_room(std::uint64_t bytes) {
  if (bytes > budget_bytes_) return false;
  for (auto& [size, first] : idle_) {
    while (held_bytes_ + bytes > budget_bytes_ && first != nullptr) {
      munmap(take_first(first), size);
      held_bytes_ -= size;
    }
  }
  return held_bytes_ + bytes <= budget_bytes_;
}

}  // namespace newmoon
