#include "engine/engine_stack.h"

#include <utility>

#include "base/log.h"
#include "store/holder_name.h"

namespace newmoon {
namespace {

constexpr std::string_view kLog = "engine_stack";

// The layout says how the ranks divide a block, since that decides whose bytes a
// shard holds.
std::string layout_of(const ModelInfo& info, std::size_t rank_count) {
  return info.layout + " block=" + std::to_string(info.block_size) +
         " ranks=" + std::to_string(rank_count);
}

Shard shard_of(std::size_t rank) { return {.tp = static_cast<std::uint16_t>(rank)}; }

}  // namespace

EngineStack::EngineStack(Options options, Parts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      info_(parts_.runner.info()),
      incarnation_(draw_incarnation(parts_.random)),
      hasher_(options_.hash_algo, info_.block_size, options_.hash_seed),
      fence_({.name_space = options_.core.name_space,
              .model = info_.name,
              .layout = layout_of(info_, options_.rank_count),
              .incarnation = incarnation_}),
      pool_({.block_count = parts_.arena.block_count(),
             .block_size = info_.block_size,
             .enable_kv_events = options_.enable_kv_events},
            fence_.epoch()) {}

EngineStack::~EngineStack() {
  if (hold_) hold_->release();
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    rank->socket->stop();
    rank->worker->close();
  }
}

Result<std::unique_ptr<EngineStack>> EngineStack::start(Options options, Parts parts) {
  if (options.reset_mode == ResetMode::kRemoveAll && !options.exclusive_store) {
    return fail(Code::kBadRequest,
                "reset_mode remove_all empties the whole store, whoever uses it; if nobody else "
                "does, say exclusive_store");
  }
  std::unique_ptr<EngineStack> stack(new EngineStack(std::move(options), std::move(parts)));
  if (stack->parts_.store != nullptr) {
    for (const auto& step : {&EngineStack::start_ranks, &EngineStack::connect}) {
      if (const Status done = (stack.get()->*step)(); !done) return std::unexpected(done.error());
    }
  }
  if (const Status built = stack->build_core(); !built) return std::unexpected(built.error());
  return stack;
}

Status EngineStack::start_ranks() {
  if (options_.rank_count == 0 ||
      options_.rank_count > static_cast<std::size_t>(info_.layer_count)) {
    return fail(Code::kBadRequest, "ranks must be in 1.." + std::to_string(info_.layer_count) +
                                       ", the model's layers, not " +
                                       std::to_string(options_.rank_count));
  }
  if (options_.socket_folder.empty()) {
    Result<TempFolder> folder = TempFolder::create();
    if (!folder) return std::unexpected(folder.error());
    own_folder_.emplace(std::move(*folder));
  }
  for (std::size_t r = 0; r < options_.rank_count; ++r) {
    Result<std::unique_ptr<Rank>> rank = start_rank(r);
    if (!rank) return std::unexpected(rank.error());
    ranks_.push_back(std::move(*rank));
  }
  return {};
}

Result<std::unique_ptr<EngineStack::Rank>> EngineStack::start_rank(std::size_t r) {
  auto rank = std::make_unique<Rank>();
  rank->memory = parts_.arena.rank_view(r, options_.rank_count);
  const std::string suffix = std::to_string(r);
  for (auto [member, name] : {std::pair{&Rank::send, "send"},
                              {&Rank::receive, "receive"},
                              {&Rank::quick, "lookup"},
                              {&Rank::bulk, "lookup-bulk"}}) {
    (*rank).*member = std::make_unique<ThreadExecutor>("nm-" + std::string(name) + suffix);
  }
  StoreWorker::Options worker;
  worker.rank = r;
  worker.shard = shard_of(r);
  for (std::size_t i = 0; i < options_.rank_count; ++i) worker.all_shards.push_back(shard_of(i));
  worker.layout = layout_id(layout_of(info_, options_.rank_count));
  worker.checksum = options_.checksum;
  worker.sole_writer = options_.core.identity == IdentityMode::kUnique;
  rank->worker = std::make_unique<StoreWorker>(std::move(worker), *parts_.store, *rank->memory,
                                               parts_.clock, *rank->send, *rank->receive);
  LookupKeyServer::Options server;
  server.block_size = info_.block_size;
  rank->server =
      std::make_unique<LookupKeyServer>(*rank->worker, server, *rank->quick, *rank->bulk);

  const std::string folder = own_folder_ ? own_folder_->path() : options_.socket_folder;
  rank->endpoint = "ipc://" + folder + "/lookup-" + options_.engine_id + "-rank" + suffix + ".sock";
  Result<std::unique_ptr<ZmqServer>> socket = ZmqServer::start(
      rank->endpoint, [server = rank->server.get()](Frames message, ReplyFn reply) {
        server->handle(message, std::move(reply));
      });
  if (!socket) return std::unexpected(socket.error());
  rank->socket = std::move(*socket);
  return rank;
}

Status EngineStack::connect() {
  std::vector<std::string> endpoints;
  for (const std::unique_ptr<Rank>& rank : ranks_) endpoints.push_back(rank->endpoint);
  Result<std::unique_ptr<ZmqClientTransport>> transport =
      ZmqClientTransport::connect(std::move(endpoints), parts_.clock);
  if (!transport) return std::unexpected(transport.error());
  transport_ = std::move(*transport);
  if (parts_.wrap_transport) transport_ = parts_.wrap_transport(std::move(transport_));

  client_ = std::make_unique<LookupKeyClient>(
      *transport_, parts_.clock,
      LookupKeyClient::Options{.lookup_timeout = options_.lookup_timeout, .foreign = {}});
  background_ = std::make_unique<ThreadExecutor>("nm-background");
  hold_ = std::make_unique<ScopeHold>(
      ScopeHold::Options{.holder = holder_name(options_.engine_id, incarnation_)}, *parts_.store,
      parts_.clock, *background_);
  store_scheduler_ = std::make_unique<StoreScheduler>(
      StoreScheduler::Options{.block_size = info_.block_size, .reset_mode = options_.reset_mode},
      fence_, *client_, pool_, hold_.get());
  connector_ = StoreConnector::for_scheduler(*store_scheduler_);
  return {};
}

Status EngineStack::build_core() {
  std::vector<StoreWorker*> workers;
  for (const std::unique_ptr<Rank>& rank : ranks_) workers.push_back(rank->worker.get());
  executor_ = std::make_unique<LocalExecutor>(LocalExecutor::Parts{
      .runner = parts_.runner, .workers = workers, .arena = &parts_.arena, .clock = parts_.clock});

  EngineCore::Options core = options_.core;
  core.scheduler.reset_mode = options_.reset_mode;
  Scheduler::Parts scheduler{.info = info_,
                             .hasher = hasher_,
                             .fence = fence_,
                             .pool = pool_,
                             .connector = connector_ ? &*connector_ : nullptr,
                             .clock = parts_.clock,
                             .purge = {}};
  if (connector_) {
    scheduler.purge = [this](const Scope& scope) {
      background_->post([store = parts_.store, id = scope.id()] {
        // About memory only: what is not purged now is evicted later.
        if (const Status purged = store->purge_scope(id, true); !purged) {
          log(LogLevel::kInfo, kLog,
              "purge of scope " + id.hex() + ": " + to_string(purged.error()));
        }
      });
    };
  }
  core_ = std::make_unique<EngineCore>(
      core, EngineCore::Parts{.scheduler = std::move(scheduler), .executor = *executor_});
  return core_->start();
}

}  // namespace newmoon
