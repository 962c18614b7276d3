// A TCP connection with deadlines. Blocking; one thread at a time.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace newmoon {

class TcpSocket {
 public:
  // `address`: HOST:PORT, an IPv6 host in brackets. Names are looked up by the system's
  // resolver, which has timeouts of its own.
  static Result<TcpSocket> connect(const std::string& address, Clock& clock, Time deadline);
  ~TcpSocket();
  TcpSocket(TcpSocket&& other) noexcept;
  TcpSocket& operator=(TcpSocket&&) = delete;

  Status send_all(std::string_view bytes, Time deadline);
  // What comes until the peer closes; kBadRequest: over `bytes_max`.
  Result<std::string> receive_all(std::size_t bytes_max, Time deadline);

 private:
  TcpSocket(int descriptor, std::string address, Clock& clock)
      : descriptor_(descriptor), address_(std::move(address)), clock_(clock) {}
  Status connect_to(const ::sockaddr* address, unsigned bytes, Time deadline);
  Status await(short events, Time deadline) const;
  std::unexpected<Error> failed(const char* what, int error) const;

  int descriptor_;
  std::string address_;
  Clock& clock_;
};

}  // namespace newmoon
