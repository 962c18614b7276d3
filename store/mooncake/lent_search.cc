#include "store/mooncake/lent_search.h"

#include "store/mooncake/value_form.h"

namespace newmoon {
namespace {

std::optional<GetValue> read_value(ByteView memory, const GetItem& item) {
  const std::uint64_t payload_bytes = total_bytes(item.payload);
  GetValue got;
  if (memory.size() != stored_bytes(payload_bytes)) return std::nullopt;
  const MutableByteView header{reinterpret_cast<std::uint8_t*>(&got.header), sizeof got.header};
  if (!read_if_mapped(reinterpret_cast<std::uintptr_t>(memory.data()), header)) return std::nullopt;
  const bool checksummed = (got.header.flags & ValueHeader::kChecksummed) != 0;
  if (!checksummed || !names(got.header, item.key, payload_bytes)) return std::nullopt;
  got.payload_checksum = scatter(memory.subspan(payload_offset(payload_bytes)), item.payload, true);
  if (got.payload_checksum != got.header.checksum) return std::nullopt;
  if (!item.checksum) got.payload_checksum = 0;
  return got;
}

}  // namespace

void LentSearch::locate(MooncakeClient& client) {
  if (!client.batch_get_replica_desc(keys.views(), replicas_)) {
    for (auto& replicas : replicas_) replicas.clear();
  }
}

std::optional<GetValue> LentSearch::read(std::size_t index, const GetItem& item) const {
  for (const MooncakeBuffer& replica : replicas_[index]) {
    const ByteView memory(static_cast<const std::uint8_t*>(replica.data), replica.bytes);
    if (!contains(lent_, memory)) continue;
    if (auto value = read_value(memory, item)) return value;
  }
  return std::nullopt;
}

}  // namespace newmoon
