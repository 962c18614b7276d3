#include "store/mooncake/master_http.h"

#include <charconv>
#include <string_view>

#include "store/mooncake/tcp_socket.h"

namespace newmoon {
namespace {

// 10^7 keys.
constexpr std::size_t kReplyBytesMax = std::size_t{1} << 30;

// Calls `line` with each line of `text`, without its end.
template <class Function>
void for_each_line(std::string_view text, const Function& line) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// A sample of Prometheus' text format: "name value".
void read_sample(std::string_view line, std::string_view name, std::uint64_t& value) {
  if (!line.starts_with(name) || line.substr(name.size(), 1) != " ") return;
  double number = 0;
  const char* const end = line.data() + line.size();
  std::from_chars(line.data() + name.size() + 1, end, number);
  if (number > 0) value = static_cast<std::uint64_t>(number);
}

// The body of a reply in HTTP/1.x that ends with the connection.
Result<std::string> body_of(const std::string& reply, const std::string& name) {
  const std::size_t head = reply.find("\r\n\r\n");
  if (head == std::string::npos || !reply.starts_with("HTTP/1.")) {
    return fail(Code::kUnavailable, name + ": what answers is no Mooncake master");
  }
  const std::string status = reply.substr(0, reply.find("\r\n"));
  if (status.find(" 200") == std::string::npos) {
    return fail(Code::kUnavailable, name + ": " + status);
  }
  return reply.substr(head + 4);
}

}  // namespace

Result<std::string> MasterHttp::get(const std::string& path, Time deadline) const {
  const std::string name = "http://" + address_ + path;
  const auto failed = [&](const Error& error) {
    return fail(error.code, "mooncake: the master's figures are not to be had (" + error.message +
                                "); the option metrics_port says where they are");
  };
  Result<TcpSocket> socket = TcpSocket::connect(address_, clock_, deadline);
  if (!socket) return failed(socket.error());
  const Status sent = socket->send_all(
      "GET " + path + " HTTP/1.1\r\nHost: " + address_ + "\r\nConnection: close\r\n\r\n", deadline);
  if (!sent) return failed(sent.error());
  const Result<std::string> reply = socket->receive_all(kReplyBytesMax, deadline);
  if (!reply) return failed(reply.error());
  Result<std::string> body = body_of(*reply, name);
  if (!body) return failed(body.error());
  return body;
}

Result<MasterHttp::Figures> MasterHttp::figures(Time deadline) const {
  const Result<std::string> text = get("/metrics", deadline);
  if (!text) return std::unexpected(text.error());
  Figures figures;
  for_each_line(*text, [&](std::string_view line) {
    read_sample(line, "master_key_count", figures.keys);
    read_sample(line, "master_allocated_bytes", figures.bytes);
    read_sample(line, "master_total_capacity_bytes", figures.capacity_bytes);
    read_sample(line, "master_evicted_key_count", figures.evicted_keys);
  });
  return figures;
}

Result<std::vector<std::string>> MasterHttp::keys(
    Time deadline, const std::function<bool(std::string_view key)>& wanted) const {
  const Result<std::string> text = get("/get_all_keys", deadline);
  if (!text) return std::unexpected(text.error());
  std::vector<std::string> keys;
  for_each_line(*text, [&](std::string_view line) {
    if (!wanted || wanted(line)) keys.emplace_back(line);
  });
  return keys;
}

Status probe_tcp(const std::string& address, Clock& clock, Time deadline) {
  const Result<TcpSocket> socket = TcpSocket::connect(address, clock, deadline);
  if (!socket) return std::unexpected(socket.error());
  return {};
}

}  // namespace newmoon
