// The memory of a memory store under its byte budget: chunks of whole pages. The
// budget counts what is mapped, in use or not, so that the process never holds more
// than it was given.
//
// Freed chunks stay mapped and serve the next request of their size: a fresh page
// costs more to fault in than to copy into. They are unmapped only when another
// size needs their bytes. Any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/thread_annotations.h"

namespace newmoon {

class PagePool {
 public:
  static constexpr std::size_t kPageBytes = 4096;
  // Chunks of so many bytes and more are aligned to it and made of huge pages.
  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

  struct Chunk {
    std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
  };

  explicit PagePool(std::uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  ~PagePool();  // REQUIRES: every chunk was freed
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  static std::size_t round_to_pages(std::size_t bytes);

  // Contents undefined. nullopt: no room within the budget now.
  // REQUIRES: bytes > 0, whole pages.
  std::optional<Chunk> allocate(std::size_t bytes);
  void free(std::span<const Chunk> chunks) noexcept;

  std::uint64_t budget_bytes() const { return budget_bytes_; }
  // Mapped bytes; never over the budget.
  std::uint64_t held_bytes() const;

 private:
  bool make_room(std::uint64_t bytes) NM_REQUIRES(mutex_);

  const std::uint64_t budget_bytes_;
  mutable Mutex mutex_;
  std::uint64_t held_bytes_ NM_GUARDED_BY(mutex_) = 0;
  // By size, one of each that was ever asked for: the first of a list of idle chunks, through
  // their first bytes, so that to free one takes no memory.
  std::unordered_map<std::size_t, std::uint8_t*> idle_ NM_GUARDED_BY(mutex_);
};

}  // namespace newmoon
