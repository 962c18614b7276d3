#include "cli/rollout_fleet.h"

#include <utility>

namespace newmoon {
namespace {

using Json = nlohmann::json;

constexpr Duration kStartTimeout = std::chrono::seconds(60);

}  // namespace

Status Fleet::start_store_server(const RolloutOptions& options) {
  Result<TempFolder> folder = TempFolder::create();
  if (!folder) return std::unexpected(folder.error());
  folder_.emplace(std::move(*folder));
  store_.url = "ipc://" + folder_->path() + "/store.sock";
  Result<ChildProcess> server =
      ChildProcess::start("store server",
                          {own_program_path(), "store-server", "--endpoint", store_.url,
                           "--store-bytes", std::to_string(options.store_bytes), "--json-lines"},
                          options.stop_fd);
  if (!server) return std::unexpected(server.error());
  store_server_ = std::make_unique<ChildProcess>(std::move(*server));
  const Result<Json> ready = store_server_->receive(kStartTimeout);
  return ready ? Status{} : std::unexpected(ready.error());
}

Status Fleet::start_store(const RolloutOptions& options) {
  if (options.store == "memory") return start_store_server(options);
  // Of a Mooncake store the engines lend the memory, an equal share each.
  const std::uint64_t share = options.store_bytes / static_cast<std::uint64_t>(options.engines);
  Result<StoreAddress> found =
      find_store(options.store, "&global_segment_size=" + std::to_string(share), *clock_);
  if (!found) return std::unexpected(found.error());
  store_ = std::move(*found);
  return {};
}

// The engines would go on with misses, which is no rollout that this run is asked for.
Status Fleet::depend_on_store(ChildProcess& engine) const {
  if (store_server_) return engine.depend_on(store_server_->pid(), "the store server of this run");
  if (!store_.master) return {};
  return engine.depend_on(store_.master->pid(), "the mooncake_master of this run");
}

Result<Fleet> Fleet::start(const RolloutOptions& options) {
  Fleet fleet;
  if (const Status started = fleet.start_store(options); !started) {
    return std::unexpected(started.error());
  }
  for (int i = 0; i < options.engines; ++i) {
    const std::string name = "engine" + std::to_string(i);
    Result<ChildProcess> child = ChildProcess::start(
        name, engine_process_argv(options, name, fleet.store_.url, weights_of_cycle(0)),
        options.stop_fd);
    if (!child) return std::unexpected(child.error());
    if (const Status watched = fleet.depend_on_store(*child); !watched) {
      return std::unexpected(watched.error());
    }
    fleet.engines_.push_back(std::move(*child));
  }
  for (ChildProcess& engine : fleet.engines_) {
    if (const Result<Json> ready = engine.receive(kStartTimeout); !ready) {
      return std::unexpected(ready.error());
    }
  }
  return fleet;
}

Fleet::~Fleet() {
  engines_.clear();
  store_server_.reset();
  store_.master.reset();
}

Status Fleet::send_all(const Json& request) {
  for (ChildProcess& engine : engines_) {
    if (const Status sent = engine.send(request); !sent) return sent;
  }
  return {};
}

Result<std::vector<Json>> Fleet::receive_all(Duration timeout) {
  std::vector<Json> replies;
  for (ChildProcess& engine : engines_) {
    Result<Json> reply = engine.receive(timeout);
    if (!reply) return std::unexpected(reply.error());
    replies.push_back(std::move(*reply));
  }
  return replies;
}

}  // namespace newmoon
