#include "store/put_check.h"

#include <string>

namespace newmoon {

Status check_put(const PutItem& item) {
  const ValueHeader& header = item.header;
  const ValueHeader named = make_header(item.key, header.layout_id, total_bytes(item.payload));
  if (header.payload_bytes != named.payload_bytes) {
    return fail(Code::kBadRequest, "put: header says " + std::to_string(header.payload_bytes) +
                                       " payload bytes, the fragments hold " +
                                       std::to_string(named.payload_bytes));
  }
  if (header.scope_id != named.scope_id || header.shard != named.shard ||
      header.block_hash != named.block_hash || header.block_hash_bytes != named.block_hash_bytes) {
    return fail(Code::kBadRequest, "put: header is not of key " + item.key.to_string());
  }
  return {};
}

}  // namespace newmoon
