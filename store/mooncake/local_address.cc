#include "store/mooncake/local_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "base/ipc_path.h"

namespace newmoon {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(std::string host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

// Connecting a datagram socket chooses a route and sends nothing.
std::string source_address(const addrinfo& peer) {
  const UniqueFd socket_fd(socket(peer.ai_family, peer.ai_socktype | SOCK_CLOEXEC, 0));
  if (!socket_fd || connect(socket_fd.get(), peer.ai_addr, peer.ai_addrlen) != 0) return "";
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  std::array<char, NI_MAXHOST> text{};
  if (getsockname(socket_fd.get(), address, &size) != 0 ||
      getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text.data();
}

}  // namespace

Result<std::string> local_address_towards(const std::string& host) {
  const Addresses addresses = resolve(host);
  for (const addrinfo* peer = addresses.get(); peer != nullptr; peer = peer->ai_next) {
    if (std::string own = source_address(*peer); !own.empty()) return own;
  }
  return fail(Code::kUnavailable, "the Mooncake master's host " + host + " has no address here");
}

}  // namespace newmoon
