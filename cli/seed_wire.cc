#include "cli/seed_wire.h"

#include "base/zmq_transport.h"
#include "cli/seed_trace.h"

namespace newmoon {

std::string ask_raw(const std::string& endpoint, const Frames& frames) {
  SystemClock clock;
  const auto transport = ZmqClientTransport::connect({endpoint}, clock);
  if (!transport) return to_string(transport.error());
  if (const Status sent = (*transport)->send(0, frames); !sent) return to_string(sent.error());
  (*transport)->wait(clock.now() + std::chrono::seconds(5));
  const auto reply = (*transport)->receive();
  return reply ? frames_hex(reply->second) : "no answer";
}

}  // namespace newmoon
