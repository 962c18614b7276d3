#include "store/mooncake/tcp_socket.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace newmoon {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> resolve(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return fail(Code::kBadRequest, address + " is not HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) return fail(Code::kUnavailable, address + ": " + gai_strerror(error));
  return AddressList(found, &freeaddrinfo);
}

}  // namespace

TcpSocket::~TcpSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

TcpSocket::TcpSocket(TcpSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      address_(std::move(other.address_)),
      clock_(other.clock_) {}

std::unexpected<Error> TcpSocket::failed(const char* what, int error) const {
  return fail(Code::kUnavailable, std::string(what) + " " + address_ + ": " + std::strerror(error));
}

Status TcpSocket::await(short events, Time deadline) const {
  while (true) {
    const Duration left = std::max(deadline - clock_.now(), Duration::zero());
    pollfd wanted{descriptor_, events, 0};
    const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    const int ready = poll(&wanted, 1, static_cast<int>(std::min<long long>(left_ms, 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return failed("poll", errno);
    if (clock_.now() >= deadline) {
      return fail(Code::kDeadline, "no answer from " + address_ + " in time");
    }
  }
}

Status TcpSocket::connect_to(const sockaddr* address, unsigned bytes, Time deadline) {
  if (::connect(descriptor_, address, bytes) == 0) return {};
  if (errno != EINPROGRESS) return failed("cannot connect to", errno);
  if (Status writable = await(POLLOUT, deadline); !writable) return writable;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return failed("cannot connect to", error);
  return {};
}

Result<TcpSocket> TcpSocket::connect(const std::string& address, Clock& clock, Time deadline) {
  const Result<AddressList> addresses = resolve(address);
  if (!addresses) return std::unexpected(addresses.error());
  Error last{Code::kUnavailable, address + " has no address"};
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    const int type = one->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC;
    TcpSocket socket(::socket(one->ai_family, type, one->ai_protocol), address, clock);
    if (socket.descriptor_ < 0) continue;
    const Status connected = socket.connect_to(one->ai_addr, one->ai_addrlen, deadline);
    if (connected) return socket;
    last = connected.error();
  }
  return std::unexpected(last);
}

Status TcpSocket::send_all(std::string_view bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return failed("cannot send to", errno);
    } else if (Status writable = await(POLLOUT, deadline); !writable) {
      return writable;
    }
  }
  return {};
}

Result<std::string> TcpSocket::receive_all(std::size_t bytes_max, Time deadline) {
  std::string received;
  std::array<char, 65536> piece;
  while (true) {
    const ssize_t size = recv(descriptor_, piece.data(), piece.size(), 0);
    if (size == 0) return received;
    if (size > 0) {
      received.append(piece.data(), static_cast<std::size_t>(size));
      if (received.size() > bytes_max) {
        return fail(Code::kBadRequest,
                    address_ + " sends more than " + std::to_string(bytes_max) + " bytes");
      }
    } else if (errno != EAGAIN && errno != EINTR) {
      return failed("cannot receive from", errno);
    } else if (Status readable = await(POLLIN, deadline); !readable) {
      return std::unexpected(readable.error());
    }
  }
}

}  // namespace newmoon
