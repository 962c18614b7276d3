#include "cli/lone_rank.h"

#include <utility>
#include <vector>

namespace newmoon {
namespace {

constexpr std::uint64_t kStoreBytesMin = std::uint64_t{64} << 20;
constexpr std::uint64_t kBytesPerBlock = 512;  // a value of one byte takes 256

MemoryStoreOptions store_options(std::size_t blocks) {
  MemoryStoreOptions options;
  options.budget_bytes = kStoreBytesMin + kBytesPerBlock * blocks;
  return options;
}

StoreWorker::Options worker_options() {
  StoreWorker::Options options;
  options.all_shards = {Shard()};
  return options;
}

}  // namespace

LoneRank::LoneRank(int block_size, std::size_t blocks)
    : store_(std::make_unique<MemoryStore>(store_options(blocks), clock_, free_)),
      worker_(
          std::make_unique<StoreWorker>(worker_options(), *store_, memory_, transfer_, transfer_)) {
  LookupKeyServer::Options options;
  options.block_size = block_size;
  server_ = std::make_unique<LookupKeyServer>(*worker_, options, quick_, bulk_);
}

Status LoneRank::preload(std::span<const BlockHash> present) {
  static constexpr std::uint8_t kPayload = 0;
  const ConstFragment payload(&kPayload, 1);
  std::vector<PutItem> items;
  items.reserve(present.size());
  for (const BlockHash& hash : present) {
    const Key key{.scope = {}, .shard = {}, .block = hash};
    items.push_back({key, make_header(key, LayoutId(), payload.size()), std::span(&payload, 1)});
  }
  for (const Status& status : store_->put(items)) {
    if (!status) return status;
  }
  return {};
}

Result<std::unique_ptr<LoneRank>> LoneRank::start(const std::string& endpoint, int block_size,
                                                  std::span<const BlockHash> present) {
  std::unique_ptr<LoneRank> rank(new LoneRank(block_size, present.size()));
  if (const Status loaded = rank->preload(present); !loaded) {
    return std::unexpected(loaded.error());
  }
  LookupKeyServer& server = *rank->server_;
  auto socket = ZmqServer::start(endpoint, [&server](const Frames& message, ReplyFn reply) {
    server.handle(message, std::move(reply));
  });
  if (!socket) return std::unexpected(socket.error());
  rank->socket_ = std::move(*socket);
  return rank;
}

}  // namespace newmoon
