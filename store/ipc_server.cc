#include "store/ipc_server.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/contain.h"
#include "base/ipc_path.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "store/ipc_handler.h"
#include "store/zmq_socket.h"

namespace newmoon {
namespace {

constexpr Duration kIdleWait = std::chrono::seconds(60);
constexpr int kMessagesPerTurn = 64;

// The head, a table, messages and a payload each of a batch, and the envelope.
constexpr std::size_t kFramesMax = ipc::kItemsMax + 8;

struct Request {
  ZmqFrames envelope;  // the peer's id, and the delimiter of a REQ
  ipc::Head head;
  ZmqFrames body;
};

// Puts and gets on their way to a worker.
class RequestQueue {
 public:
  explicit RequestQueue(std::size_t requests_max) : requests_max_(requests_max) {}

  // False: full; the request stays the caller's.
  bool push(Request& request) {
    {
      MutexLock lock(mutex_);
      if (requests_.size() >= requests_max_) return false;
      requests_.push_back(std::move(request));
    }
    changed_.notify_one();
    return true;
  }
  // Waits; nullopt: closed.
  std::optional<Request> pop() {
    MutexLock lock(mutex_);
    while (requests_.empty() && !closed_) changed_.wait(mutex_);
    if (closed_) return std::nullopt;
    Request request = std::move(requests_.front());
    requests_.pop_front();
    return request;
  }
  void close() {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  const std::size_t requests_max_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Request> requests_ NM_GUARDED_BY(mutex_);
  bool closed_ NM_GUARDED_BY(mutex_) = false;
};

// Replies on their way back to the thread that owns the socket, which they wake.
class ReplyQueue {
 public:
  ReplyQueue() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int wake_fd() const { return wake_.get(); }
  void push(ZmqFrames reply) {
    MutexLock lock(mutex_);
    replies_.push_back(std::move(reply));
    wake();
  }
  void wake() const {
    const std::uint64_t one = 1;
    while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
  std::vector<ZmqFrames> take() {
    std::uint64_t count = 0;
    while (read(wake_.get(), &count, sizeof count) < 0 && errno == EINTR) {
    }
    MutexLock lock(mutex_);
    return std::exchange(replies_, {});
  }

 private:
  UniqueFd wake_;
  Mutex mutex_;
  std::vector<ZmqFrames> replies_ NM_GUARDED_BY(mutex_);
};

ZmqFrames with_envelope(ZmqFrames envelope, ZmqFrames reply) {
  for (ZmqFrame& frame : reply) envelope.push_back(std::move(frame));
  return envelope;
}

}  // namespace

struct StoreServer::Impl {
  // Declared so that the socket goes first, then the context, then the path.
  IpcPathLock path_lock;
  std::unique_ptr<ZmqContext> context;
  ZmqSocket router;
  ipc::Handler handler;
  RequestQueue requests;
  ReplyQueue replies;
  std::atomic<std::uint64_t> bad_requests{0};
  std::atomic<bool> stopping{false};
  ErrorCounter thrown{"store server"};
  std::vector<std::thread> threads;

  void start(int workers) {
    for (int i = 0; i < workers; ++i) {
      threads.emplace_back([this] {
        pthread_setname_np(pthread_self(), "nm-store-copy");
        while (std::optional<Request> request = requests.pop()) {
          if (const Status worked = contain([&] { work(std::move(*request)); }); !worked) {
            thrown.add(worked.error());
          }
        }
      });
    }
    threads.emplace_back([this] {
      pthread_setname_np(pthread_self(), "nm-store-server");
      while (!stopping) {
        if (const Status served = contain([this] { serve(); }); !served) {
          thrown.add(served.error());
        }
      }
    });
  }

  void stop() {
    stopping = true;
    replies.wake();
    requests.close();
    for (std::thread& thread : threads) thread.join();
  }

  void serve() {
    router.wait(kIdleWait, replies.wake_fd());
    for (int i = 0; i < kMessagesPerTurn; ++i) {
      for (ZmqFrames& reply : replies.take()) router.send(std::move(reply));
      std::optional<ZmqSocket::Received> received = router.receive();
      if (!received) return;
      accept(std::move(*received));
    }
  }

  // Answers, or hands over to a worker.
  void accept(ZmqSocket::Received received) {
    ZmqFrames& frames = received.frames;
    Request request;
    const bool delimited = frames.size() > 1 && frames[1].bytes().empty();
    const std::size_t head_at = delimited ? 2 : 1;
    if (frames.size() <= head_at) return refuse(std::move(frames), {}, "has no frames");
    for (std::size_t i = 0; i < head_at; ++i) request.envelope.push_back(std::move(frames[i]));
    const Result<ipc::Head> head = ipc::decode_head(frames[head_at].bytes());
    if (!head) return refuse(std::move(request.envelope), {}, head.error().message);
    if (received.cut) return refuse(std::move(request.envelope), *head, "has too many frames");
    if (head->reply) return refuse(std::move(request.envelope), *head, "is a reply");
    request.head = *head;
    for (std::size_t i = head_at + 1; i < frames.size(); ++i) {
      request.body.push_back(std::move(frames[i]));
    }
    if (head->op != ipc::Op::kPut && head->op != ipc::Op::kGet) return work(std::move(request));
    if (requests.push(request)) return;
    const Error busy{Code::kBusy, "store server: too many puts and gets are waiting"};
    reply(std::move(request.envelope), ipc::Handler::refuse(request.head, busy));
  }

  void work(Request request) {
    Result<ZmqFrames> answered =
        contain([&]() -> Result<ZmqFrames> { return handler.answer(request.head, request.body); });
    if (!answered) thrown.add(answered.error());
    ZmqFrames answer =
        answered ? std::move(*answered) : ipc::Handler::refuse(request.head, answered.error());
    const Result<ipc::Head> head = ipc::decode_head(answer[0].bytes());
    if (head && head->flags == ipc::to_wire(fail(Code::kBadRequest, ""))) ++bad_requests;
    replies.push(with_envelope(std::move(request.envelope), std::move(answer)));
  }

  void refuse(ZmqFrames envelope, const ipc::Head& head, const std::string& why) {
    const std::uint64_t count = ++bad_requests;
    // Every doubling only: a peer that sends nothing but noise must not fill the disk.
    if (std::has_single_bit(count)) {
      log(LogLevel::kWarning, "store server",
          "bad request " + std::to_string(count) + ": a request " + why);
    }
    reply(std::move(envelope), ipc::Handler::refuse(head, {Code::kBadRequest, why}));
  }

  // On the serving thread.
  void reply(ZmqFrames envelope, ZmqFrames answer) {
    router.send(with_envelope(std::move(envelope), std::move(answer)));
  }
};

StoreServer::StoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StoreServer::~StoreServer() { impl_->stop(); }

std::uint64_t StoreServer::bad_requests() const { return impl_->bad_requests; }

Result<std::unique_ptr<StoreServer>> StoreServer::start(const std::string& endpoint, KvStore& store,
                                                        const Options& options) {
  const Result<std::string> path = parse_ipc_endpoint(endpoint);
  if (!path) return std::unexpected(path.error());
  Result<IpcPathLock> lock = IpcPathLock::acquire(*path);
  if (!lock) return std::unexpected(lock.error());
  auto context = std::make_unique<ZmqContext>();
  const ZmqSocket::Limits limits{.frame_bytes_max = ipc::kPayloadBytesMax,
                                 .frames_max = kFramesMax};
  Result<ZmqSocket> router = ZmqSocket::bind_router(*context, endpoint, limits);
  if (!router) return std::unexpected(router.error());
  chmod(path->c_str(), 0600);
  std::unique_ptr<Impl> impl(new Impl{.path_lock = std::move(*lock),
                                      .context = std::move(context),
                                      .router = std::move(*router),
                                      .handler = ipc::Handler(store),
                                      .requests = RequestQueue(options.queued_requests_max),
                                      .replies = {},
                                      .threads = {}});
  impl->start(options.workers);
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(impl)));
}

}  // namespace newmoon
