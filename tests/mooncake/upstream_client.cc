#include "tests/mooncake/upstream_client.h"

#include <utility>

#include "store/mooncake/wheel_folder.h"

namespace newmoon::testing {

ChildProcess UpstreamClient::start(const std::string& master) {
  const Result<std::string> wheel = mooncake_wheel_folder();
  if (!wheel) throw std::runtime_error(wheel.error().message);
  Result<ChildProcess> process =
      ChildProcess::start("upstream", {NEWMOON_PYTHON, NEWMOON_UPSTREAM_CLIENT, *wheel, master});
  if (!process) throw std::runtime_error(process.error().message);
  return std::move(*process);
}

}  // namespace newmoon::testing
