#include "cli/lone_rank.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace newmoon {
namespace {

constexpr std::uint64_t kStoreBytesMin = std::uint64_t{64} << 20;
constexpr std::uint64_t kBytesPerBlock = 512;  // a value of one byte takes 256
constexpr std::size_t kBatchBlocks = 1024;

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

LoneRank::LoneRank(int block_size, std::size_t blocks, KvStore* store)
    : own_store_(store != nullptr
                     ? nullptr
                     : std::make_unique<MemoryStore>(store_options(blocks), clock_, free_)),
      store_(store != nullptr ? store : own_store_.get()),
      worker_(std::make_unique<StoreWorker>(worker_options(), *store_, memory_, clock_, transfer_,
                                            transfer_)) {
  LookupKeyServer::Options options;
  options.block_size = block_size;
  server_ = std::make_unique<LookupKeyServer>(*worker_, options, quick_, bulk_);
}

Status LoneRank::preload(std::span<const BlockHash> present) {
  static constexpr std::uint8_t kPayload = 0;
  const ConstFragment payload(&kPayload, 1);
  for (std::size_t at = 0; at < present.size(); at += kBatchBlocks) {
    std::vector<PutItem> items;
    for (const BlockHash& hash : present.subspan(at, std::min(kBatchBlocks, present.size() - at))) {
      const Key key{.scope = {}, .shard = {}, .block = hash};
      items.push_back({key, make_header(key, LayoutId(), payload.size()), std::span(&payload, 1)});
    }
    for (const Status& status : store_->put(items)) {
      if (!status) return status;
    }
  }
  return {};
}

Result<std::unique_ptr<LoneRank>> LoneRank::start(const std::string& endpoint, int block_size,
                                                  std::span<const BlockHash> present) {
  return serve(std::unique_ptr<LoneRank>(new LoneRank(block_size, present.size(), nullptr)),
               endpoint, present);
}

Result<std::unique_ptr<LoneRank>> LoneRank::start(const std::string& endpoint, int block_size,
                                                  std::span<const BlockHash> present,
                                                  KvStore& store) {
  return serve(std::unique_ptr<LoneRank>(new LoneRank(block_size, present.size(), &store)),
               endpoint, present);
}

Result<std::unique_ptr<LoneRank>> LoneRank::serve(std::unique_ptr<LoneRank> rank,
                                                  const std::string& endpoint,
                                                  std::span<const BlockHash> present) {
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
