#include "store/holder_name.h"

#include <unistd.h>

#include "base/bytes.h"

namespace newmoon {

std::string holder_name(const std::string& engine_id, const Incarnation& incarnation) {
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return engine_id + "@" + host + ":" + std::to_string(getpid()) + ":" +
         to_hex(ByteView(incarnation.bytes).first(4));
}

}  // namespace newmoon
