// A batch of values on its way to or from Mooncake, through staging memory; a put's payload
// may also lie where Mooncake can read it (KvStore::register_memory). It belongs to the call
// that moves it, which may outlast the caller's patience: nothing else is the caller's.
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

// What an item takes here.
struct ValueRoom {
  std::uint64_t bytes = 0;         // of the value
  std::uint64_t staged_bytes = 0;  // of a payload that is read in place: what is in front
  bool is_worked_on = false;       // copied or hashed on this side, not by Mooncake alone
};

// Cuts the items at `positions` into batches that are moved at once: large enough for a call to
// be cheap, small enough for one to be copied or hashed, or asked for, while others are under
// way, and for several to fit the staging memory.
std::vector<Positions> cut_batches(const Positions& positions, std::span<const ValueRoom> rooms,
                                   std::uint64_t staging_bytes);

struct Transfer {
  // Room for the items at `positions` in `region`, one after the other.
  Transfer(Positions positions, std::span<const ValueRoom> rooms,
           std::unique_ptr<StagingArena::Region> region);
  // Bytes of a region for them.
  static std::uint64_t region_bytes(const Positions& positions, std::span<const ValueRoom> rooms);

  // Puts an item's header to its place, and its payload unless it is read where it is, and
  // names its key. In order. `is_sure`: no put has failed so far. Else put() looks whether what
  // a sole writer has put can be read, too, and the header keeps out of the room in front of the
  // payload, where a call may be reading still.
  void stage(std::size_t index, const PutItem& item, bool is_sure);

  // On a worker: the calls. Why put() looks: Mooncake answers success for a key that
  // somebody else is writing, or has left half written.
  void put(MooncakeClient& client, Clock& clock, Time deadline);
  void get(MooncakeClient& client);

  // After put(): of an item. After get(): copies to the caller's fragments.
  bool may_be_half_put() const;
  Status put_status(std::size_t index, const Key& key) const;
  Result<GetValue> take(std::size_t index, const GetItem& item) const;

  const Positions positions;
  KeyTexts keys;
  std::vector<std::unique_ptr<ScopeGate::Put>> passes;  // of a put: the scopes it writes to

 private:
  void confirm(MooncakeClient& client, Clock& clock, Time deadline);

  std::unique_ptr<StagingArena::Region> region_;
  std::vector<MooncakeBuffer> staged_;  // by item
  std::vector<MooncakeValue> values_;   // of a put
  std::vector<bool> looks_;             // of a put
  std::vector<std::int64_t> codes_;
  Status status_;  // of the call as a whole
};

}  // namespace newmoon
