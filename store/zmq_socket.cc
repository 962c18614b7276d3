#include "store/zmq_socket.h"

#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/contain.h"

namespace newmoon {

// --- frames ----------------------------------------------------------------------

struct ZmqFrame::Message {
  zmq_msg_t zmq;
};

ZmqFrame::Message* ZmqFrame::message() const {
  static_assert(sizeof(Message) == sizeof(storage_) && alignof(Message) <= 8);
  return reinterpret_cast<Message*>(storage_);
}

ZmqFrame::ZmqFrame(std::size_t bytes) {
  if (zmq_msg_init_size(&(new (storage_) Message)->zmq, bytes) != 0) throw std::bad_alloc();
}

ZmqFrame::ZmqFrame(ByteView copied) : ZmqFrame(copied.size()) {
  if (!copied.empty()) std::memcpy(zmq_msg_data(&message()->zmq), copied.data(), copied.size());
}

ZmqFrame::ZmqFrame(ZmqFrame&& other) noexcept {
  zmq_msg_init(&(new (storage_) Message)->zmq);
  zmq_msg_move(&message()->zmq, &other.message()->zmq);
}

ZmqFrame& ZmqFrame::operator=(ZmqFrame&& other) noexcept {
  if (this != &other) zmq_msg_move(&message()->zmq, &other.message()->zmq);
  return *this;
}

ZmqFrame::~ZmqFrame() { zmq_msg_close(&message()->zmq); }

ByteView ZmqFrame::bytes() const {
  zmq_msg_t* zmq = &message()->zmq;
  return {static_cast<const std::uint8_t*>(zmq_msg_data(zmq)), zmq_msg_size(zmq)};
}

MutableByteView ZmqFrame::mutable_bytes() {
  zmq_msg_t* zmq = &message()->zmq;
  return {static_cast<std::uint8_t*>(zmq_msg_data(zmq)), zmq_msg_size(zmq)};
}

// --- sockets -----------------------------------------------------------------------

ZmqContext::ZmqContext() : context_(zmq_ctx_new()) {}

ZmqContext::~ZmqContext() {
  while (zmq_ctx_term(context_) != 0 && errno == EINTR) {
  }
}

void ZmqSocket::Close::operator()(void* socket) const { zmq_close(socket); }

ZmqSocket::ZmqSocket(ZmqContext& context, int type, const Limits& limits)
    : limits_(limits), socket_(zmq_socket(context.get(), type)) {
  if (!socket_) return;
  set(ZMQ_LINGER, 0);
  set(ZMQ_SNDHWM, limits.queued_messages_max);
  set(ZMQ_RCVHWM, limits.queued_messages_max);
  // A connection that broke is not used again, so nobody waits for a reconnect.
  set(ZMQ_RECONNECT_IVL, -1);
  const auto bytes_max = static_cast<std::int64_t>(limits.frame_bytes_max);
  zmq_setsockopt(socket_.get(), ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max);
}

void ZmqSocket::set(int option, int value) {
  zmq_setsockopt(socket_.get(), option, &value, sizeof value);
}

Result<ZmqSocket> ZmqSocket::bind_router(ZmqContext& context, const std::string& endpoint,
                                         const Limits& limits) {
  ZmqSocket router(context, ZMQ_ROUTER, limits);
  if (!router.socket_ || zmq_bind(router.socket_.get(), endpoint.c_str()) != 0) {
    return fail(Code::kUnavailable, "cannot bind " + endpoint + ": " + zmq_strerror(zmq_errno()));
  }
  return router;
}

Result<ZmqSocket> ZmqSocket::connect_dealer(ZmqContext& context, const std::string& endpoint,
                                            const Limits& limits, Clock& clock, Time deadline) {
  ZmqSocket dealer(context, ZMQ_DEALER, limits);
  if (!dealer.socket_ || !dealer.watch(context) ||
      zmq_connect(dealer.socket_.get(), endpoint.c_str()) != 0) {
    return fail(Code::kUnavailable,
                "cannot connect to " + endpoint + ": " + zmq_strerror(zmq_errno()));
  }
  while (true) {
    if (const std::optional<bool> connected = dealer.next_event()) {
      if (*connected) return dealer;
      return fail(Code::kUnavailable, "no store server at " + endpoint);
    }
    const Duration left = deadline - clock.now();
    if (left <= Duration::zero()) {
      return fail(Code::kDeadline, "the server at " + endpoint + " did not greet in time");
    }
    dealer.wait(left);
  }
}

bool ZmqSocket::watch(ZmqContext& context) {
  const std::string name = context.next_inproc_name();
  constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                          ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
  if (zmq_socket_monitor(socket_.get(), name.c_str(), kEvents) != 0) return false;
  monitor_.reset(zmq_socket(context.get(), ZMQ_PAIR));
  const int no_linger = 0;
  if (monitor_) zmq_setsockopt(monitor_.get(), ZMQ_LINGER, &no_linger, sizeof no_linger);
  return monitor_ && zmq_connect(monitor_.get(), name.c_str()) == 0;
}

// Frame 1 of an event is u16 event and u32 value, in the machine's order; frame 2 the
// address (zmq_socket_monitor(3)).
std::optional<bool> ZmqSocket::next_event() {
  ZmqFrame event;
  if (zmq_msg_recv(&event.message()->zmq, monitor_.get(), ZMQ_DONTWAIT) < 0) return std::nullopt;
  ZmqFrame address;
  zmq_msg_recv(&address.message()->zmq, monitor_.get(), ZMQ_DONTWAIT);
  std::uint16_t number = 0;
  std::memcpy(&number, event.bytes().data(), sizeof number);
  return number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
}

bool ZmqSocket::lost() {
  while (const std::optional<bool> connected = next_event()) {
    if (!*connected) return true;
  }
  return false;
}

bool ZmqSocket::send(ZmqFrames frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    int sent = -1;
    do {
      sent = zmq_msg_send(&frames[i].message()->zmq, socket_.get(), flags);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) return false;
  }
  return true;
}

// libzmq hands over whole messages only: once the first frame is there, all are.
std::optional<ZmqSocket::Received> ZmqSocket::receive() {
  Received received;
  for (bool more = true; more;) {
    ZmqFrame frame;
    int size = -1;
    do {
      size = zmq_msg_recv(&frame.message()->zmq, socket_.get(), ZMQ_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    if (size < 0) return std::nullopt;
    more = zmq_msg_more(&frame.message()->zmq) != 0;
    received.cut = received.cut || received.frames.size() >= limits_.frames_max ||
                   !contain([&] { received.frames.push_back(std::move(frame)); });
  }
  return received;
}

ZmqSocket::Wait ZmqSocket::wait(Duration timeout, int wake_fd) {
  zmq_pollitem_t items[3] = {{socket_.get(), 0, ZMQ_POLLIN, 0}};
  int count = 1;
  const int monitor_at = count;
  if (monitor_) items[count++] = {monitor_.get(), 0, ZMQ_POLLIN, 0};
  const int wake_at = count;
  if (wake_fd >= 0) items[count++] = {nullptr, wake_fd, ZMQ_POLLIN, 0};
  // Rounded up, so that the last turn does not spin; a minute at most, as zmq_poll
  // cannot take every Duration.
  const auto timeout_ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  const int ready = zmq_poll(items, count, std::clamp<long>(timeout_ms, 0, 60'000));
  if (ready <= 0) return Wait::kTimeout;
  if (items[0].revents != 0) return Wait::kMessage;
  if (monitor_at < wake_at && items[monitor_at].revents != 0) return Wait::kLost;
  return Wait::kWoken;
}

}  // namespace newmoon
