// A batch of values on its way to or from Mooncake, through staging memory. It belongs to
// the call that moves it, which may outlast the caller's patience: nothing in it is the
// caller's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "store/kv_store.h"
#include "store/mooncake/client.h"
#include "store/mooncake/key_texts.h"
#include "store/mooncake/scope_gate.h"
#include "store/mooncake/staging_arena.h"

namespace newmoon {

// Indices into a batch of items.
using Positions = std::vector<std::size_t>;

// Cuts the items at `positions`, whose values have `value_bytes`, into batches that are
// moved at once: large enough for a call to be cheap, small enough for one to be copied
// while another is under way, and for several to fit the staging memory.
std::vector<Positions> cut_batches(const Positions& positions,
                                   std::span<const std::uint64_t> value_bytes,
                                   std::uint64_t staging_bytes);

struct Transfer {
  // Room for the values of the items at `positions` in `region`, one after the other.
  Transfer(Positions positions, std::span<const std::uint64_t> value_bytes,
           std::unique_ptr<StagingArena::Region> region);
  // Bytes of a region for them.
  static std::uint64_t region_bytes(const Positions& positions,
                                    std::span<const std::uint64_t> value_bytes);

  // Copies an item's header and payload to its place, and names its key. In order.
  void stage(std::size_t index, const PutItem& item);

  // On a worker: the calls. put() also looks whether what was put can be read: Mooncake
  // answers success for a key that somebody else is writing, or has left half written.
  void put(MooncakeClient& client, Clock& clock, Time deadline);
  void get(MooncakeClient& client);

  // After put(): of an item. After get(): copies to the caller's fragments.
  Status put_status(std::size_t index, const Key& key) const;
  Result<GetValue> take(std::size_t index, const GetItem& item) const;

  const Positions positions;
  KeyTexts keys;
  std::vector<std::unique_ptr<ScopeGate::Put>> passes;  // of a put: the scopes it writes to

 private:
  void confirm(MooncakeClient& client, Clock& clock, Time deadline);

  std::unique_ptr<StagingArena::Region> region_;
  std::vector<MooncakeBuffer> buffers_;
  std::vector<std::int64_t> codes_;
  Status status_;  // of the call as a whole
};

}  // namespace newmoon
