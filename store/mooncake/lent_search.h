// Values in memory that this process itself lends to Mooncake: read where they lie, one copy
// instead of the two through staging memory, and never late, since no call of the wheel writes.
//
// Mooncake says at which address of its owner's a value lies. Another process may have lent the
// same address, where this one has something else or nothing any more, and a value may be evicted
// and written over while it is read. So the header is read with care (read_if_mapped()), and
// nothing counts as found but what proves to be the value, by its header and checksum.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "store/kv_store.h"
#include "store/mooncake/client.h"
#include "store/mooncake/key_texts.h"
#include "store/mooncake/mapped_memory.h"

namespace newmoon {

struct LentSearch {
  // `lent`: where to look; what of it holds a value of the key must stay mapped while read() runs.
  LentSearch(std::size_t count, std::span<const AddressRange> lent)
      : keys(count), lent_(lent), replicas_(count) {}

  // On a worker, once `keys` are there. Nothing is found if the call fails.
  void locate(MooncakeClient& client);

  // Fills the item's payload; nullopt: to be got elsewhere, the payload is undefined. Several
  // threads may read different items at a time.
  std::optional<GetValue> read(std::size_t index, const GetItem& item) const;

  KeyTexts keys;

 private:
  const std::span<const AddressRange> lent_;
  std::vector<std::vector<MooncakeBuffer>> replicas_;  // by key
};

}  // namespace newmoon
