#include "sim/block_memory.h"

#include <algorithm>
#include <functional>

namespace newmoon::sim {
namespace {

constexpr std::size_t kHalfBytes = toy::kKvEntryBytes / 2;

// The offset of `address` in `region`, or the region's size if it lies outside.
std::size_t offset_in(const Bytes& region, const std::uint8_t* address) {
  const std::less<const std::uint8_t*> before;
  if (before(address, region.data())) return region.size();
  if (!before(address, region.data() + region.size())) return region.size();
  return static_cast<std::size_t>(address - region.data());
}

void erase_each(std::multiset<BlockId>& set, const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) set.erase(set.find(block));
}

}  // namespace

SimMemory::SimMemory(std::size_t rank, int block_count, int block_size, Verdict& verdict)
    : rank_(rank),
      block_size_(block_size),
      verdict_(verdict),
      low_(static_cast<std::size_t>(block_count * block_size) * kHalfBytes),
      high_(low_.size()) {}

std::vector<Fragment> SimMemory::fragments(BlockId block) {
  const std::size_t bytes = static_cast<std::size_t>(block_size_) * kHalfBytes;
  const std::size_t at = static_cast<std::size_t>(block) * bytes;
  return {Fragment(low_).subspan(at, bytes), Fragment(high_).subspan(at, bytes)};
}

std::uint64_t SimMemory::block_bytes() const {
  return static_cast<std::uint64_t>(block_size_) * toy::kKvEntryBytes;
}

toy::KvEntry SimMemory::entry(BlockId block, int offset) const {
  const std::size_t at = static_cast<std::size_t>(block * block_size_ + offset) * kHalfBytes;
  return toy::KvEntry{load_le<std::uint32_t>(high_.data() + at)} << 32 |
         load_le<std::uint32_t>(low_.data() + at);
}

void SimMemory::set_entry(BlockId block, int offset, toy::KvEntry entry) {
  const std::size_t at = static_cast<std::size_t>(block * block_size_ + offset) * kHalfBytes;
  store_le<std::uint32_t>(low_.data() + at, static_cast<std::uint32_t>(entry));
  store_le<std::uint32_t>(high_.data() + at, static_cast<std::uint32_t>(entry >> 32));
}

void SimMemory::scribble(Random& random) {
  const auto fill = static_cast<std::uint8_t>(random.next());
  low_.assign(low_.size(), fill);
  high_.assign(high_.size(), fill);
}

Bytes SimMemory::payload(std::span<const toy::KvEntry> entries) {
  Bytes bytes(entries.size() * toy::kKvEntryBytes);
  std::uint8_t* low = bytes.data();
  std::uint8_t* high = bytes.data() + bytes.size() / 2;
  for (const toy::KvEntry entry : entries) {
    store_le<std::uint32_t>(low, static_cast<std::uint32_t>(entry));
    store_le<std::uint32_t>(high, static_cast<std::uint32_t>(entry >> 32));
    low += kHalfBytes;
    high += kHalfBytes;
  }
  return bytes;
}

void SimMemory::job_started(const LoadJob& job) {
  std::vector<BlockId>& blocks = (loads_[job.load_id] = {job.request_id, job.epoch, {}}).blocks;
  for (const BlockRef& ref : job.blocks) {
    if (saved_blocks_.contains(ref.block)) {
      verdict_.violation("W6", name(ref.block) + " is loaded into while it is being saved");
    }
    if (loaded_blocks_.contains(ref.block)) {
      verdict_.violation("W6", name(ref.block) + " is loaded into by two loads");
    }
    blocks.push_back(ref.block);
    loaded_blocks_.insert(ref.block);
  }
}

void SimMemory::job_started(const SaveJob& job) {
  std::vector<BlockId>& blocks = (saves_[job.job_id] = {job.request_id, job.epoch, {}}).blocks;
  for (const BlockRef& ref : job.blocks) {
    blocks.push_back(ref.block);
    saved_blocks_.insert(ref.block);
  }
}

void SimMemory::reported(const LoadReport& report) {
  const auto job = loads_.find(report.load_id);
  if (job == loads_.end()) {
    verdict_.violation("report", "rank " + std::to_string(rank_) + " reports load " +
                                     std::to_string(report.load_id) +
                                     ", which it did not have or reported before");
    return;
  }
  erase_each(loaded_blocks_, job->second.blocks);
  loads_.erase(job);
}

void SimMemory::reported(const SaveReport& report) {
  const auto job = saves_.find(report.job_id);
  if (job == saves_.end()) {
    verdict_.violation("report", "rank " + std::to_string(rank_) + " reports save " +
                                     std::to_string(report.job_id) +
                                     ", which it did not have or reported before");
    return;
  }
  erase_each(saved_blocks_, job->second.blocks);
  saves_.erase(job);
}

void SimMemory::note_cancelled() {
  for (const auto& [id, job] : loads_) {
    after_cancelled_load_.insert(job.blocks.begin(), job.blocks.end());
  }
}

void SimMemory::note_finished(const RequestId& id) {
  for (const auto& [load_id, job] : loads_) {
    if (job.request_id != id) continue;
    verdict_.saw(Overlap::kAbortDuringLoad);
    after_cancelled_load_.insert(job.blocks.begin(), job.blocks.end());
  }
  for (const auto& [job_id, job] : saves_) {
    if (job.request_id != id) continue;
    verdict_.saw(Overlap::kFinishUnderSave);
    after_queued_save_.insert(job.blocks.begin(), job.blocks.end());
  }
}

void SimMemory::check_read(BlockId block) {
  if (!loaded_blocks_.contains(block)) return;
  verdict_.violation("W6", name(block) + " is read by a step while a load writes it");
}

void SimMemory::check_write(BlockId block) {
  if (after_cancelled_load_.erase(block) > 0) verdict_.saw(Overlap::kReuseAfterCancelledLoad);
  if (after_queued_save_.erase(block) > 0) verdict_.saw(Overlap::kReuseAfterQueuedSave);
  if (loaded_blocks_.contains(block)) {
    verdict_.violation("W6", name(block) + " is written by a step while a load writes it");
  }
  if (saved_blocks_.contains(block)) {
    verdict_.violation("W6", name(block) + " is written by a step while it is being saved");
  }
}

void SimMemory::check_transfer_from(const std::uint8_t* address) {
  const BlockId block = block_at(address);
  if (block == kNullBlock || saved_blocks_.contains(block)) return;
  verdict_.violation("W6", name(block) + " is read by the store after its save was reported");
}

void SimMemory::check_transfer_to(const std::uint8_t* address) {
  const BlockId block = block_at(address);
  if (block == kNullBlock || loaded_blocks_.contains(block)) return;
  verdict_.violation("W6", name(block) + " is written by the store after its load was reported");
}

void SimMemory::check_admitted(std::span<const std::uint8_t* const> addresses, Epoch floor) {
  for (const std::uint8_t* address : addresses) {
    const BlockId block = block_at(address);
    // Several saves may share a block; one that is admitted is enough.
    Epoch newest = 0;
    for (const auto* jobs : {&loads_, &saves_}) {
      for (const auto& [id, job] : *jobs) {
        if (std::ranges::find(job.blocks, block) != job.blocks.end()) {
          newest = std::max(newest, job.epoch);
        }
      }
    }
    if (newest > 0 && newest < floor) {
      verdict_.violation(
          "FLOOR", "the store is called for " + name(block) + " by a job below its rank's floor");
    }
  }
}

BlockId SimMemory::block_at(const std::uint8_t* address) const {
  const std::size_t bytes = static_cast<std::size_t>(block_size_) * kHalfBytes;
  for (const Bytes* region : {&low_, &high_}) {
    const std::size_t offset = offset_in(*region, address);
    if (offset < region->size()) return static_cast<BlockId>(offset / bytes);
  }
  return kNullBlock;
}

std::string SimMemory::name(BlockId block) const {
  return "block " + std::to_string(block) + " of rank " + std::to_string(rank_);
}

}  // namespace newmoon::sim
