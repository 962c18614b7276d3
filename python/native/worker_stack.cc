#include "python/native/worker_stack.h"

#include <filesystem>
#include <new>
#include <utility>

#include "base/ipc_path.h"
#include "python/native/freed_memory.h"
#include "store/holder_name.h"

namespace newmoon {
namespace {

Shard shard_of(std::size_t rank) { return {.tp = static_cast<std::uint16_t>(rank)}; }

}  // namespace

Result<std::unique_ptr<WorkerStack>> WorkerStack::start(Options options) {
  keep_freed_memory();
  std::unique_ptr<WorkerStack> stack(new WorkerStack(std::move(options)));
  for (const auto& step : {&WorkerStack::open, &WorkerStack::make_staging, &WorkerStack::serve}) {
    if (const Status done = (stack.get()->*step)(); !done) return std::unexpected(done.error());
  }
  return stack;
}

WorkerStack::~WorkerStack() {
  if (socket_ != nullptr) socket_->stop();
  if (worker_ != nullptr) worker_->close();
  if (hold_ != nullptr) hold_->release();
}

void WorkerStack::hold_scopes() {
  SystemRandom random;
  hold_ = std::make_unique<ScopeHold>(
      ScopeHold::Options{.holder = holder_name(options_.engine_id, draw_incarnation(random))},
      *store_, clock_, *purge_);
  renewing_ = std::make_unique<Ticker>("nm-hold", std::chrono::seconds(1),
                                       [hold = hold_.get()] { hold->renew(); });
}

Status WorkerStack::open() {
  free_ = std::make_unique<ThreadExecutor>("nm-free");
  Result<std::unique_ptr<KvStore>> store =
      make_store(options_.store_url, options_.store, clock_, *free_);
  if (!store) return std::unexpected(store.error());
  store_ = std::move(*store);
  return {};
}

Status WorkerStack::make_staging() {
  std::uint64_t block_bytes = 0;
  for (const StagedMemory::Region& region : options_.regions) block_bytes += region.bytes;
  if (block_bytes == 0) return fail(Code::kBadRequest, "there is no KV memory to save from");
  if (options_.staging_bytes < block_bytes) {
    return fail(Code::kBadRequest, "staging_bytes " + std::to_string(options_.staging_bytes) +
                                       " holds no block; it takes " + std::to_string(block_bytes) +
                                       " at least, the bytes of one on this rank");
  }
  const bool with_checksums = StoreWorker::uses_checksums(options_.checksum, *store_);
  try {
    memory_ = std::make_unique<StagedMemory>(options_.regions, options_.block_count,
                                             options_.staging_bytes / block_bytes, with_checksums,
                                             store_->front_room_for(block_bytes));
  } catch (const std::bad_alloc&) {
    return fail(Code::kUnavailable, "staging_bytes " + std::to_string(options_.staging_bytes) +
                                        ": this machine gives no such memory; ask for less");
  }
  const auto [owner, slots] = memory_->slots();
  store_->register_memory(owner, slots);
  return {};
}

Status WorkerStack::serve() {
  for (auto [member, name] : {std::pair{&WorkerStack::send_, "nm-send"},
                              {&WorkerStack::receive_, "nm-receive"},
                              {&WorkerStack::quick_, "nm-lookup"},
                              {&WorkerStack::bulk_, "nm-lookup-bulk"},
                              {&WorkerStack::purge_, "nm-purge"}}) {
    this->*member = std::make_unique<ThreadExecutor>(name);
  }
  worker_ =
      std::make_unique<StoreWorker>(worker_options(), *store_, *memory_, clock_, *send_, *receive_);
  if (options_.rank == 0) hold_scopes();
  role_ = std::make_unique<WorkerRole>(*worker_, *memory_, *store_, *purge_, hold_.get());
  LookupKeyServer::Options server;
  server.block_size = options_.block_size;
  server_ = std::make_unique<LookupKeyServer>(*worker_, server, *quick_, *bulk_);
  if (const Result<std::string> path = parse_ipc_endpoint(options_.endpoint)) {
    sweep_dead_servers(std::filesystem::path(*path).parent_path().string());
  }
  Result<std::unique_ptr<ZmqServer>> socket =
      ZmqServer::start(options_.endpoint, [server = server_.get()](Frames message, ReplyFn reply) {
        server->handle(message, std::move(reply));
      });
  if (!socket) return std::unexpected(socket.error());
  socket_ = std::move(*socket);
  return {};
}

StoreWorker::Options WorkerStack::worker_options() const {
  StoreWorker::Options worker;
  worker.rank = options_.rank;
  worker.shard = shard_of(options_.rank);
  worker.layout = layout_id(options_.layout);
  worker.checksum = options_.checksum;
  worker.sole_writer = options_.sole_writer;
  worker.load_timeout = options_.load_timeout;
  // A store in this process holds this rank's shard alone. The others save the same blocks,
  // so the own one stands for all; one that is missing there fails its load, and is computed.
  const bool own_store = options_.store_url == "memory";
  for (std::size_t rank = 0; rank < options_.rank_count; ++rank) {
    if (!own_store || rank == options_.rank) worker.all_shards.push_back(shard_of(rank));
  }
  return worker;
}

}  // namespace newmoon
