#include "base/zmq_transport.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <span>
#include <utility>

#include "base/contain.h"
#include "base/ipc_path.h"
#include "base/log.h"
#include "base/thread_annotations.h"

// libzmq is not built with ThreadSanitizer and synchronizes by atomics that it cannot
// see. Our code is never called from libzmq's threads, so no race of ours is hidden.
#if defined(__SANITIZE_THREAD__)
#define NM_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NM_THREAD_SANITIZER 1
#endif
#endif
#ifdef NM_THREAD_SANITIZER
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libzmq.so\n"; }
#endif

namespace newmoon {
namespace {

constexpr std::uint8_t kRefusal = 0x00;  // RESP_ERR of the admin channel, and of vLLM
constexpr std::size_t kCorrelationIdSize = 4;
// How long a client waits before it tries a dead server again.
constexpr int kReconnectMs = 10;
constexpr int kReconnectMaxMs = 200;
constexpr int kMessagesPerTurn = 64;

struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};
using SocketPtr = std::unique_ptr<void, CloseSocket>;

struct TerminateContext {
  // Every socket has linger 0 and is closed by now: this waits for nobody.
  void operator()(void* context) const {
    while (zmq_ctx_term(context) != 0 && errno == EINTR) {
    }
  }
};
using ContextPtr = std::unique_ptr<void, TerminateContext>;

class Message {
 public:
  Message() { zmq_msg_init(&msg_); }
  explicit Message(ByteView bytes) {
    ok_ = zmq_msg_init_size(&msg_, bytes.size()) == 0;
    if (ok_ && !bytes.empty()) std::memcpy(zmq_msg_data(&msg_), bytes.data(), bytes.size());
  }
  ~Message() {
    if (ok_) zmq_msg_close(&msg_);
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool receive(void* socket) {
    int size = -1;
    do {
      size = zmq_msg_recv(&msg_, socket, ZMQ_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    return size >= 0;
  }
  bool send(void* socket, bool more) {
    if (!ok_) return false;
    int size = -1;
    do {
      size = zmq_msg_send(&msg_, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
    } while (size < 0 && errno == EINTR);
    return size >= 0;
  }
  ByteView bytes() {
    return {static_cast<const std::uint8_t*>(zmq_msg_data(&msg_)), zmq_msg_size(&msg_)};
  }
  bool more() const { return zmq_msg_more(&msg_) != 0; }

 private:
  zmq_msg_t msg_;
  bool ok_ = true;
};

SocketPtr make_socket(void* context, int type, const ZmqLimits& limits) {
  SocketPtr socket(zmq_socket(context, type));
  if (!socket) return socket;
  const auto set = [&](int option, int value) {
    zmq_setsockopt(socket.get(), option, &value, sizeof value);
  };
  set(ZMQ_LINGER, 0);
  set(ZMQ_SNDHWM, limits.queued_messages_max);
  set(ZMQ_RCVHWM, limits.queued_messages_max);
  set(ZMQ_RECONNECT_IVL, kReconnectMs);
  set(ZMQ_RECONNECT_IVL_MAX, kReconnectMaxMs);
  const auto bytes_max = static_cast<std::int64_t>(limits.message_bytes_max);
  zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &bytes_max, sizeof bytes_max);
  return socket;
}

struct Incoming {
  Frames frames;                   // of a refused message only the first ones
  std::optional<Error> refused{};  // beyond the limits, or there was no memory for it
};

// libzmq hands over whole messages only: once the first frame is there, all are. They are
// all received, whatever becomes of them: what is left would be taken for the next message.
std::optional<Incoming> receive_message(void* socket, const ZmqLimits& limits) {
  Incoming incoming;
  std::size_t bytes = 0;
  for (bool more = true; more;) {
    Message part;
    if (!part.receive(socket)) return std::nullopt;
    more = part.more();
    if (incoming.refused) continue;
    bytes += part.bytes().size();
    if (bytes > limits.message_bytes_max || incoming.frames.size() >= limits.frames_max) {
      incoming.refused = {Code::kBadRequest, "a message beyond the limits of size or frames"};
      continue;
    }
    const Status kept =
        contain([&] { incoming.frames.emplace_back(part.bytes().begin(), part.bytes().end()); });
    if (!kept) incoming.refused = kept.error();
  }
  return incoming;
}

enum class SendOutcome { kSent, kNothingSent, kTorn };

SendOutcome send_message(void* socket, std::span<const Bytes> envelope, const Frames& frames) {
  const std::size_t count = envelope.size() + frames.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Bytes& frame = i < envelope.size() ? envelope[i] : frames[i - envelope.size()];
    Message part(frame);
    if (part.send(socket, i + 1 < count)) continue;
    return i == 0 ? SendOutcome::kNothingSent : SendOutcome::kTorn;
  }
  return SendOutcome::kSent;
}

// Frames that belong to the envelope of a message behind the ROUTER's routing id.
std::size_t envelope_size(std::span<const Bytes> frames) {
  if (frames.empty()) return 0;
  if (frames[0].empty()) return 1;
  const bool correlated =
      frames.size() > 1 && frames[0].size() == kCorrelationIdSize && frames[1].empty();
  return correlated ? 2 : 0;
}

// Where answers wait for the server's thread. Outlives the server in the hands of
// those who still owe an answer.
class Outbox {
 public:
  struct Answer {
    Frames envelope;
    Frames frames;
  };

  Outbox() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int wake_fd() const { return wake_.get(); }

  void push(Answer answer) {
    MutexLock lock(mutex_);
    if (closed_) return;
    answers_.push_back(std::move(answer));
    wake();
  }
  std::vector<Answer> take() {
    MutexLock lock(mutex_);
    return std::exchange(answers_, {});
  }
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    answers_.clear();
    wake();
  }
  bool closed() {
    MutexLock lock(mutex_);
    return closed_;
  }
  void clear_wake() {
    std::uint64_t count = 0;
    while (read(wake_.get(), &count, sizeof count) < 0 && errno == EINTR) {
    }
  }

 private:
  void wake() NM_REQUIRES(mutex_) {
    const std::uint64_t one = 1;
    while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  UniqueFd wake_;
  Mutex mutex_;
  std::vector<Answer> answers_ NM_GUARDED_BY(mutex_);
  bool closed_ NM_GUARDED_BY(mutex_) = false;
};

// The duty to answer one message: shared by the copies of its ReplyFn, done once.
class OwedAnswer {
 public:
  OwedAnswer(std::shared_ptr<Outbox> outbox, Frames envelope)
      : outbox_(std::move(outbox)), envelope_(std::move(envelope)) {}
  ~OwedAnswer() {
    (void)contain([this] { answer({{kRefusal}}); });
  }
  OwedAnswer(const OwedAnswer&) = delete;
  OwedAnswer& operator=(const OwedAnswer&) = delete;

  void answer(Frames frames) {
    if (answered_.exchange(true)) return;
    outbox_->push({std::move(envelope_), std::move(frames)});
  }

 private:
  std::shared_ptr<Outbox> outbox_;
  Frames envelope_;
  std::atomic<bool> answered_{false};
};

}  // namespace

struct ZmqServer::Impl {
  // Declared so that the socket goes first, then the context, then the path.
  IpcPathLock path_lock;
  ContextPtr context;
  SocketPtr socket;
  MessageHandler handler;
  ZmqLimits limits;
  std::shared_ptr<Outbox> outbox = std::make_shared<Outbox>();
  ErrorCounter refused{"zmq"};

  void run() {
    pthread_setname_np(pthread_self(), "nm-zmq-server");
    while (!outbox->closed()) {
      zmq_pollitem_t items[] = {{socket.get(), 0, ZMQ_POLLIN, 0},
                                {nullptr, outbox->wake_fd(), ZMQ_POLLIN, 0}};
      if (zmq_poll(items, 2, -1) < 0) continue;  // EINTR
      if (items[1].revents != 0) outbox->clear_wake();
      const Status served = contain([&] {
        send_answers();
        if (items[0].revents != 0) receive_some();
      });
      if (!served) refused.add(served.error());
    }
  }

  void send_answers() {
    for (const Outbox::Answer& answer : outbox->take()) {
      send_message(socket.get(), answer.envelope, answer.frames);
    }
  }

  void receive_some() {
    for (int i = 0; i < kMessagesPerTurn; ++i) {
      std::optional<Incoming> incoming = receive_message(socket.get(), limits);
      if (!incoming) return;
      handle(std::move(*incoming));
      send_answers();
    }
  }

  void handle(Incoming incoming) {
    Frames& frames = incoming.frames;
    if (frames.empty()) return;  // an oversized routing id: nobody to answer
    const std::size_t count = 1 + envelope_size(std::span(frames).subspan(1));
    const auto body = frames.begin() + static_cast<std::ptrdiff_t>(count);
    Frames envelope(std::make_move_iterator(frames.begin()), std::make_move_iterator(body));
    frames.erase(frames.begin(), body);
    auto owed = std::make_shared<OwedAnswer>(outbox, std::move(envelope));
    if (incoming.refused) return refused.add(*incoming.refused);  // ~OwedAnswer answers
    const Status handled = contain([&] {
      handler(std::move(frames), [owed](Frames answer) { owed->answer(std::move(answer)); });
    });
    if (!handled) refused.add(handled.error());
  }
};

ZmqServer::ZmqServer(std::string endpoint, std::unique_ptr<Impl> impl)
    : endpoint_(std::move(endpoint)), impl_(std::move(impl)), thread_([this] { impl_->run(); }) {}

ZmqServer::~ZmqServer() { stop(); }

void ZmqServer::stop() {
  if (!impl_) return;
  impl_->outbox->close();
  thread_.join();
  impl_.reset();
}

Result<std::unique_ptr<ZmqServer>> ZmqServer::start(const std::string& endpoint,
                                                    MessageHandler handler, ZmqLimits limits) {
  Result<std::string> path = parse_ipc_endpoint(endpoint);
  if (!path) return std::unexpected(path.error());
  Result<IpcPathLock> lock = IpcPathLock::acquire(*path);
  if (!lock) return std::unexpected(lock.error());
  ContextPtr context(zmq_ctx_new());
  if (!context) return fail(Code::kInternal, "libzmq gave no context");
  SocketPtr socket = make_socket(context.get(), ZMQ_ROUTER, limits);
  if (!socket || zmq_bind(socket.get(), endpoint.c_str()) != 0) {
    return fail(Code::kUnavailable, "cannot bind " + endpoint + ": " + zmq_strerror(zmq_errno()));
  }
  chmod(path->c_str(), 0600);
  std::unique_ptr<Impl> impl(new Impl{.path_lock = std::move(*lock),
                                      .context = std::move(context),
                                      .socket = std::move(socket),
                                      .handler = std::move(handler),
                                      .limits = limits});
  return std::unique_ptr<ZmqServer>(new ZmqServer(endpoint, std::move(impl)));
}

struct ZmqClientTransport::Impl {
  Clock& clock;
  const ZmqLimits limits;
  const std::vector<std::string> endpoints;
  ContextPtr context;
  std::vector<SocketPtr> sockets;  // null: could not be opened
  std::size_t next_peer = 0;       // whose turn receive() begins with
  ErrorCounter refused{"zmq"};

  void open(std::size_t peer) {
    sockets[peer].reset();
    SocketPtr socket = make_socket(context.get(), ZMQ_DEALER, limits);
    if (!socket || zmq_connect(socket.get(), endpoints[peer].c_str()) != 0) {
      log(LogLevel::kError, "zmq",
          "cannot connect to " + endpoints[peer] + ": " + zmq_strerror(zmq_errno()));
      return;
    }
    sockets[peer] = std::move(socket);
  }

  std::optional<Frames> receive_from(std::size_t peer) {
    while (sockets[peer]) {
      std::optional<Incoming> incoming = receive_message(sockets[peer].get(), limits);
      if (!incoming) break;
      if (incoming->refused) {
        refused.add(*incoming->refused);
        continue;
      }
      Frames& frames = incoming->frames;
      if (frames.front().empty()) frames.erase(frames.begin());
      return std::move(frames);
    }
    return std::nullopt;
  }
};

ZmqClientTransport::ZmqClientTransport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqClientTransport::~ZmqClientTransport() = default;

Result<std::unique_ptr<ZmqClientTransport>> ZmqClientTransport::connect(
    std::vector<std::string> endpoints, Clock& clock, ZmqLimits limits) {
  for (const std::string& endpoint : endpoints) {
    if (Result<std::string> path = parse_ipc_endpoint(endpoint); !path) {
      return std::unexpected(path.error());
    }
  }
  ContextPtr context(zmq_ctx_new());
  if (!context) return fail(Code::kInternal, "libzmq gave no context");
  std::unique_ptr<Impl> impl(new Impl{.clock = clock,
                                      .limits = limits,
                                      .endpoints = std::move(endpoints),
                                      .context = std::move(context),
                                      .sockets = {}});
  impl->sockets.resize(impl->endpoints.size());
  for (std::size_t peer = 0; peer < impl->sockets.size(); ++peer) {
    impl->open(peer);
    if (!impl->sockets[peer]) {
      return fail(Code::kUnavailable, "cannot open a socket for " + impl->endpoints[peer]);
    }
  }
  return std::unique_ptr<ZmqClientTransport>(new ZmqClientTransport(std::move(impl)));
}

std::size_t ZmqClientTransport::peer_count() const { return impl_->sockets.size(); }

Status ZmqClientTransport::send(std::size_t peer, const Frames& frames) {
  static const Bytes kDelimiter;
  const std::string& endpoint = impl_->endpoints[peer];
  if (!impl_->sockets[peer]) return fail(Code::kUnavailable, "no connection to " + endpoint);
  switch (send_message(impl_->sockets[peer].get(), std::span(&kDelimiter, 1), frames)) {
    case SendOutcome::kSent:
      return {};
    case SendOutcome::kNothingSent:
      return fail(Code::kUnavailable, "the outgoing queue to " + endpoint + " is full");
    case SendOutcome::kTorn:
      // Half a message is in the pipe: only a new connection is clean again.
      reopen(peer);
      return fail(Code::kUnavailable, "the connection to " + endpoint + " broke");
  }
  return fail(Code::kInternal, "unknown outcome of a send");
}

std::optional<std::pair<std::size_t, Frames>> ZmqClientTransport::receive() {
  const std::size_t count = impl_->sockets.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t peer = (impl_->next_peer + i) % count;
    std::optional<Frames> frames = impl_->receive_from(peer);
    if (!frames) continue;
    impl_->next_peer = (peer + 1) % count;
    return std::pair(peer, std::move(*frames));
  }
  return std::nullopt;
}

bool ZmqClientTransport::wait(Time deadline) {
  std::vector<zmq_pollitem_t> items;
  for (const SocketPtr& socket : impl_->sockets) {
    if (socket) items.push_back({socket.get(), 0, ZMQ_POLLIN, 0});
  }
  while (true) {
    const Duration left = std::max(deadline - impl_->clock.now(), Duration::zero());
    // Rounded up, so that the last turn does not spin; a minute at most, as zmq_poll
    // cannot take every Duration.
    const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(left);
    const long timeout_ms = std::min<long>(left_ms.count(), 60'000);
    const int ready = zmq_poll(items.data(), static_cast<int>(items.size()), timeout_ms);
    if (ready > 0) return true;
    if (left == Duration::zero()) return false;
  }
}

void ZmqClientTransport::reopen(std::size_t peer) { impl_->open(peer); }

}  // namespace newmoon
