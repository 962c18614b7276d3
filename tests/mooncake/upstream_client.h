// Upstream's client of a Mooncake store: the wheel in a Python process of its own, as in a
// vLLM worker, doing step by step what upstream's connector does.
#pragma once

#include <signal.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/child_process.h"
#include "store/mooncake/master_process.h"

namespace newmoon::testing {

class UpstreamClient {
 public:
  explicit UpstreamClient(const MooncakeMaster& master)
      : process_(std::in_place, start(master.address())) {
    const Result<nlohmann::json> joined = process_->receive(std::chrono::seconds(20));
    if (!joined || joined->at("code") != 0) throw std::runtime_error("upstream's setup failed");
  }
  UpstreamClient(const UpstreamClient&) = delete;
  UpstreamClient& operator=(const UpstreamClient&) = delete;

  // What upstream calls a block of a rank. Nothing in it says which weights.
  static std::string key(const std::string& model, int rank, int block) {
    return model + "@tp_rank:" + std::to_string(rank) + "@pcp0@dcp0@pp_rank:0@group:0@b10c" +
           std::to_string(block);
  }

  int put(const std::string& key, const std::string& value) {
    return code({{"call", "put"}, {"key", key}, {"value", value}});
  }
  std::string get(const std::string& key) {
    return call({{"call", "get"}, {"key", key}}).value("value", "");
  }
  std::vector<int> exist(const std::vector<std::string>& keys) {
    return codes({{"call", "exist"}, {"keys", keys}});
  }
  bool exists(const std::string& key) { return exist({key}) == std::vector<int>{1}; }
  // A put under way: begun, and not readable before put_end().
  std::vector<int> put_start(const std::vector<std::string>& keys, std::uint64_t bytes) {
    return codes({{"call", "put_start"}, {"keys", keys}, {"bytes", bytes}});
  }
  std::vector<int> put_end(const std::vector<std::string>& keys) {
    return codes({{"call", "put_end"}, {"keys", keys}});
  }
  // What upstream's reset does on the store: how many values it removed, or a negative code.
  int remove_all() { return code({{"call", "remove_all"}}); }
  // kill -9
  void die() {
    ::kill(process_->pid(), SIGKILL);
    process_.reset();
  }

 private:
  static ChildProcess start(const std::string& master);
  nlohmann::json call(const nlohmann::json& request) {
    const Result<nlohmann::json> reply = process_->call(request, std::chrono::seconds(20));
    if (!reply) throw std::runtime_error(reply.error().message);
    return *reply;
  }
  int code(const nlohmann::json& request) { return call(request).at("code"); }
  std::vector<int> codes(const nlohmann::json& request) { return call(request).at("codes"); }

  std::optional<ChildProcess> process_;
};

}  // namespace newmoon::testing
