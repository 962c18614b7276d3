// One rank's KV memory, with a ledger of who may touch which block, so that the
// simulator sees every access that rules PIN and STEP forbid (contract W6).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "connector/metadata.h"
#include "hash/block.h"
#include "model/toy_model.h"
#include "sim/verdict.h"

namespace newmoon::sim {

class SimMemory final : public BlockMemory {
 public:
  SimMemory(std::size_t rank, int block_count, int block_size, Verdict& verdict);

  // The low and the high halves of the entries lie in regions of their own, as K and
  // V do: a block is two fragments.
  std::vector<Fragment> fragments(BlockId block) override;
  std::uint64_t block_bytes() const override;

  toy::KvEntry entry(BlockId block, int offset) const;
  void set_entry(BlockId block, int offset, toy::KvEntry entry);
  // Whatever was there is gone.
  void scribble(Random& random);
  // The payload of a block of these entries.
  static Bytes payload(std::span<const toy::KvEntry> entries);

  // --- the ledger: a job holds its blocks from the step that brought it until it is
  // reported ---
  void job_started(const LoadJob& job);
  void job_started(const SaveJob& job);
  void reported(const LoadReport& report);
  void reported(const SaveReport& report);
  std::size_t jobs_outstanding() const { return loads_.size() + saves_.size(); }
  bool loads_outstanding() const { return !loads_.empty(); }
  // For coverage: loads that go on are for nobody now; saves of a request that ended.
  void note_cancelled();
  void note_finished(const RequestId& id);

  // The forward pass is about to read or write a block.
  void check_read(BlockId block);
  void check_write(BlockId block);
  // The store is about to copy from or to this address.
  void check_transfer_from(const std::uint8_t* address);
  void check_transfer_to(const std::uint8_t* address);
  // A store call begins for the jobs of these addresses, while the rank refuses what is
  // below `floor` (rule FLOOR, at execution).
  void check_admitted(std::span<const std::uint8_t* const> addresses, Epoch floor);

 private:
  BlockId block_at(const std::uint8_t* address) const;  // kNullBlock: none of ours
  std::string name(BlockId block) const;

  const std::size_t rank_;
  const int block_size_;
  Verdict& verdict_;
  Bytes low_;
  Bytes high_;
  struct Job {
    RequestId request_id;
    Epoch epoch = 0;
    std::vector<BlockId> blocks;
  };

  std::map<std::uint64_t, Job> loads_;
  std::map<std::uint64_t, Job> saves_;
  std::multiset<BlockId> loaded_blocks_;
  std::multiset<BlockId> saved_blocks_;
  // Whose next write is one of the overlaps to be covered.
  std::set<BlockId> after_cancelled_load_;
  std::set<BlockId> after_queued_save_;
};

}  // namespace newmoon::sim
