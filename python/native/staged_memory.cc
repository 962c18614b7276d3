#include "python/native/staged_memory.h"

#include <cstdlib>
#include <new>
#include <utility>

#include "hash/value.h"

namespace newmoon {
namespace {

std::uint64_t sum_bytes(const std::vector<StagedMemory::Region>& regions) {
  std::uint64_t bytes = 0;
  for (const StagedMemory::Region& region : regions) bytes += region.bytes;
  return bytes;
}

// Not touched before they are used.
std::shared_ptr<std::uint8_t[]> zeros(std::size_t count, std::size_t bytes) {
  auto* const memory = static_cast<std::uint8_t*>(std::calloc(count, bytes));
  if (memory == nullptr && count * bytes > 0) throw std::bad_alloc();
  return {memory, std::free};
}

}  // namespace

StagedMemory::StagedMemory(std::vector<Region> regions, std::size_t block_count,
                           std::size_t slot_count, bool checksum, std::size_t front_room)
    : regions_(std::move(regions)),
      block_count_(block_count),
      block_bytes_(sum_bytes(regions_)),
      slot_count_(slot_count),
      front_room_(front_room),
      slot_stride_(front_room + block_bytes_),
      slots_(zeros(slot_count, slot_stride_)),
      checksums_(checksum ? slot_count : 0) {
  free_.reserve(slot_count);
  for (std::size_t i = slot_count; i > 0; --i) {
    free_.push_back(static_cast<BlockId>(block_count_ + i - 1));
  }
}

bool StagedMemory::is_block(BlockId id) const {
  return id > kNullBlock && static_cast<std::size_t>(id) < block_count_;
}

std::vector<Fragment> StagedMemory::fragments(BlockId block) {
  if (!is_block(block)) return {slot(block)};
  std::vector<Fragment> fragments;
  fragments.reserve(regions_.size());
  for (const Region& region : regions_) {
    fragments.emplace_back(region.base + static_cast<std::size_t>(block) * region.stride,
                           region.bytes);
  }
  return fragments;
}

std::optional<BlockId> StagedMemory::stage(BlockId block) {
  if (free_.empty()) return std::nullopt;
  const BlockId id = free_.back();
  free_.pop_back();
  const std::vector<Fragment> from = fragments(block);
  const std::vector<ConstFragment> payload(from.begin(), from.end());
  const bool hashed = !checksums_.empty();
  const std::uint64_t checksum = gather(payload, slot(id), hashed);
  if (hashed) checksums_[slot_index(id)] = checksum;
  return id;
}

std::optional<std::uint64_t> StagedMemory::checksum(BlockId id) const {
  if (is_block(id) || checksums_.empty()) return std::nullopt;
  return checksums_[slot_index(id)];
}

void StagedMemory::release(BlockId slot) { free_.push_back(slot); }

std::pair<std::shared_ptr<const void>, ByteView> StagedMemory::slots() const {
  return {slots_, {slots_.get(), slot_count_ * slot_stride_}};
}

MutableByteView StagedMemory::slot(BlockId id) {
  return {slots_.get() + slot_index(id) * slot_stride_ + front_room_, block_bytes_};
}

}  // namespace newmoon
