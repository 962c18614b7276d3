#include <memory>

#include "admin/lookup_key_client.h"
#include "base/zmq_transport.h"
#include "python/bindings/bind.h"

namespace newmoon {
namespace {

ForeignDialect to_dialect(const std::string& name) {
  if (name == "vllm") return ForeignDialect::kVllm;
  if (name == "seed") return ForeignDialect::kSeed;
  raise({Code::kBadRequest, "dialect '" + name + "': use vllm or seed"});
}

// A LookupKeyClient for one server of vLLM's, with its connection.
class Client {
 public:
  Client(std::string endpoint, const std::string& dialect, double timeout_s)
      : timeout_(to_duration(timeout_s)),
        transport_(value_or_raise(ZmqClientTransport::connect({std::move(endpoint)}, clock_))),
        client_(*transport_, clock_, {.lookup_timeout = timeout_, .foreign = to_dialect(dialect)}) {
  }

  std::uint32_t lookup(std::uint32_t num_tokens, const py::sequence& block_hashes) {
    LookupRequest request;
    request.num_tokens = num_tokens;
    request.block_hashes = to_block_hashes(block_hashes);
    return value_or_raise(one_thread_.without_gil([&] { return wait_for(request); }));
  }

  py::dict reset() {
    const LookupKeyClient::ResetAnswer reply = one_thread_.without_gil(
        [&] { return client_.reset({.mode = ResetMode::kRemoveAll}, clock_.now() + timeout_); });
    py::dict answer;
    answer["success"] = reply.all_ok();
    answer["fenced"] = reply.fenced;
    answer["error"] = reply.all_ok() ? "" : to_string(reply.ranks.at(0).ack.error());
    return answer;
  }

 private:
  Result<std::uint32_t> wait_for(const LookupRequest& request) {
    const Time deadline = clock_.now() + timeout_;
    std::optional<Result<std::uint32_t>> hit = client_.lookup("", request);
    while (!hit) {
      transport_->wait(deadline);
      hit = client_.lookup("", request);
    }
    client_.discard("");
    return *hit;
  }

  const Duration timeout_;
  SystemClock clock_;
  std::unique_ptr<ZmqClientTransport> transport_;
  LookupKeyClient client_;
  OneThread one_thread_;
};

}  // namespace

void bind_lookup_client(py::module_& module) {
  py::class_<Client>(module, "LookupKeyClient")
      .def(py::init<std::string, const std::string&, double>(), py::arg("endpoint"), py::kw_only(),
           py::arg("dialect") = "vllm", py::arg("timeout_s") = 1.0)
      .def("lookup", &Client::lookup, py::arg("num_tokens"), py::arg("block_hashes"))
      .def("reset", &Client::reset);
}

}  // namespace newmoon
