// What every backend checks of a put before it does anything.
#pragma once

#include "base/result.h"
#include "store/kv_store.h"

namespace newmoon {

// kBadRequest: the header is not the key's, or its length not the payload's.
Status check_put(const PutItem& item);

}  // namespace newmoon
