#include <memory>
#include <optional>
#include <tuple>

#include "python/bindings/bind.h"
#include "python/native/scheduler_stack.h"
#include "python/native/worker_stack.h"

namespace newmoon {
namespace {

// --- scheduler ---

ResetMode to_reset_mode(const std::string& name) {
  for (const ResetMode mode : {ResetMode::kFence, ResetMode::kRemoveAll}) {
    if (name == to_string(mode)) return mode;
  }
  raise({Code::kBadRequest, "reset_mode '" + name + "': use fence or remove_all"});
}

IdentityMode to_identity_mode(const std::string& name) {
  if (name == "unique") return IdentityMode::kUnique;
  if (name == "digest") return IdentityMode::kDigest;
  if (name == "trust_weight_version") return IdentityMode::kTrustedLabel;
  raise({Code::kBadRequest, "identity '" + name + "': use unique, digest or trust_weight_version"});
}

class Scheduler {
 public:
  explicit Scheduler(std::unique_ptr<SchedulerStack> stack) : stack_(std::move(stack)) {}

  SchedulerRole& role() {
    one_thread_.check();
    return stack_->role();
  }
  Time after(Duration timeout) const { return stack_->after(timeout); }
  // work(role) may wait for ranks.
  template <class Work>
  auto wait(Work work) {
    return one_thread_.without_gil([&] { return work(stack_->role()); });
  }

 private:
  const std::unique_ptr<SchedulerStack> stack_;
  OneThread one_thread_;
};

std::unique_ptr<Scheduler> make_scheduler(std::vector<std::string> endpoints,
                                          std::string name_space, std::string model,
                                          std::string layout, int block_size,
                                          std::uint32_t min_load_tokens,
                                          const std::string& reset_mode, double lookup_timeout_s,
                                          const std::string& identity) {
  SchedulerRole::Options options;
  options.name_space = std::move(name_space);
  options.model = std::move(model);
  options.layout = std::move(layout);
  options.lookup_timeout = to_duration(lookup_timeout_s);
  options.scheduler.block_size = block_size;
  options.scheduler.min_load_tokens = min_load_tokens;
  options.scheduler.reset_mode = to_reset_mode(reset_mode);
  options.identity = to_identity_mode(identity);
  return std::make_unique<Scheduler>(
      value_or_raise(SchedulerStack::start(std::move(options), std::move(endpoints))));
}

// All hashes of the request; those known already are not looked at.
void add_hashes(Scheduler& self, const std::string& request_id, const py::sequence& hashes) {
  const std::size_t known = self.role().hash_count(request_id);
  if (hashes.size() > known) self.role().add_hashes(request_id, to_block_hashes(hashes, known));
}

std::optional<std::uint32_t> match(Scheduler& self, const std::string& request_id,
                                   const py::sequence& hashes, std::uint32_t num_tokens,
                                   std::uint32_t num_computed_tokens) {
  add_hashes(self, request_id, hashes);
  return self.wait(
      [&](SchedulerRole& role) { return role.match(request_id, num_tokens, num_computed_tokens); });
}

void schedule(Scheduler& self, const std::string& request_id, const py::sequence& hashes,
              const std::vector<BlockId>& blocks, bool replace, std::uint32_t num_computed_tokens,
              std::uint32_t num_scheduled_tokens, bool save) {
  add_hashes(self, request_id, hashes);
  self.role().schedule(request_id, blocks, replace, num_computed_tokens, num_scheduled_tokens,
                       save);
}

py::bytes build_connector_meta(Scheduler& self, bool runs_on) {
  // Every step comes here: whoever gives the GIL up may get it back only when vLLM's thread
  // for outputs is done. Only opening a scope waits for anybody.
  const auto encoded = [&](SchedulerRole& role) -> Bytes {
    return encode_step(role.build_connector_meta(runs_on));
  };
  SchedulerRole& role = self.role();
  return to_python(role.adopt_is_due() ? self.wait(encoded) : encoded(role));
}

std::pair<bool, std::vector<std::string>> update_connector_output(
    Scheduler& self, const std::vector<py::bytes>& messages) {
  std::vector<WorkerReport> reports;
  for (const py::bytes& message : messages) {
    reports.push_back(value_or_raise(decode_report(view_of(message))));
  }
  SchedulerRole::Output output = self.role().update_connector_output(reports);
  return {output.must_fence, std::move(output.cancelled)};
}

py::dict reset(Scheduler& self, bool keep_verified, double timeout_s) {
  const Time deadline = self.after(to_duration(timeout_s));
  const SchedulerRole::Reset reset =
      self.wait([&](SchedulerRole& role) { return role.reset(keep_verified, deadline); });
  py::dict answer;
  answer["success"] = reset.answer.success;
  answer["degraded"] = reset.answer.degraded;
  answer["scope"] = std::string(to_string(reset.scope));
  answer["silent_ranks"] = reset.answer.silent_ranks;
  answer["dropped_loads"] = reset.answer.dropped_loads;
  answer["dropped_saves"] = reset.answer.dropped_saves;
  answer["removed"] = reset.answer.removed;
  answer["error"] = reset.answer.error;
  return answer;
}

// By rank: its count of weight writes, and the SHA-256 of its tensors.
void identify(Scheduler& self, const std::vector<std::pair<std::uint64_t, py::bytes>>& ranks) {
  std::vector<Sha256Digest> digests;
  std::vector<std::uint64_t> writes;
  for (const auto& [count, digest] : ranks) {
    writes.push_back(count);
    digests.push_back(std::get<DigestIdentity>(*to_weights(digest, std::nullopt)).sha256);
  }
  self.role().identify(digests, std::move(writes));
}

void bind_scheduler(py::module_& module) {
  py::class_<Scheduler>(module, "ConnectorScheduler")
      .def(py::init(&make_scheduler), py::kw_only(), py::arg("endpoints"), py::arg("namespace"),
           py::arg("model"), py::arg("layout"), py::arg("block_size"),
           py::arg("min_load_tokens") = 0, py::arg("reset_mode") = "fence",
           py::arg("lookup_timeout_s") = 1.0, py::arg("identity") = "unique")
      .def_property_readonly("epoch", [](Scheduler& self) { return self.role().fence().epoch(); })
      .def_property_readonly("scope", [](Scheduler& self) { return self.role().fence().scope(); })
      .def_property_readonly("has_loads", [](Scheduler& self) { return self.role().has_loads(); })
      .def("is_loading",
           [](Scheduler& self, const std::string& request_id) {
             return self.role().is_loading(request_id);
           })
      .def("match", &match)
      .def("update_state_after_alloc",
           [](Scheduler& self, const std::string& request_id, std::vector<BlockId> blocks,
              std::uint32_t num_computed_tokens, std::uint32_t num_external_tokens) {
             return self.role().update_state_after_alloc(request_id, std::move(blocks),
                                                         num_computed_tokens, num_external_tokens);
           })
      .def("request_finished",
           [](Scheduler& self, const std::string& request_id) {
             self.role().request_finished(request_id);
           })
      .def("schedule", &schedule)
      .def("build_connector_meta", &build_connector_meta, py::arg("runs_on") = false)
      .def("update_connector_output", &update_connector_output)
      .def("reset", &reset, py::kw_only(), py::arg("keep_verified") = false,
           py::arg("timeout_s") = 5.0)
      .def("seal", [](Scheduler& self) { self.role().seal(); })
      .def("unseal", [](Scheduler& self) { self.role().unseal(); })
      .def("weights_were_written",
           [](Scheduler& self) {
             return self.wait([](SchedulerRole& role) { return role.weights_were_written(); });
           })
      .def_property_readonly("writes_are_known",
                             [](Scheduler& self) { return self.role().writes_are_known(); })
      .def_property_readonly("adopt_is_due",
                             [](Scheduler& self) { return self.role().adopt_is_due(); })
      .def("identify", &identify)
      .def("set_weight_version",
           [](Scheduler& self, const std::string& weight_version) {
             self.role().set_weight_version(weight_version);
           })
      .def("fence_only",
           [](Scheduler& self) { return std::string(to_string(self.role().fence_only())); });
}

// --- worker ---

// A rank, and the message of the step at hand.
class Worker {
 public:
  explicit Worker(WorkerStack::Options options)
      : stack_(
            value_or_raise(without_gil([&] { return WorkerStack::start(std::move(options)); }))) {}
  ~Worker() { close(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  WorkerStack& stack() {
    if (stack_ == nullptr) raise({Code::kBadRequest, "the connector was shut down"});
    return *stack_;
  }
  void bind(const py::bytes& message) { step_ = value_or_raise(decode_step(view_of(message))); }
  const StepMessage& step() const { return step_; }
  void close() {
    const py::gil_scoped_release release;
    if (closing_.is_forked()) static_cast<void>(stack_.release());  // its threads are the parent's
    stack_.reset();
  }

 private:
  std::unique_ptr<WorkerStack> stack_;
  StepMessage step_;
  const CloseAtExit closing_{[this] { close(); }};
};

// (address, bytes from block to block, bytes a block) of each tensor.
using RegionTuple = std::tuple<std::uintptr_t, std::size_t, std::size_t>;

std::unique_ptr<Worker> make_worker(std::string store, std::uint64_t store_bytes,
                                    double store_timeout_s, double load_timeout_s,
                                    std::string layout, std::size_t rank, std::size_t rank_count,
                                    int block_size, std::string endpoint, std::string engine_id,
                                    const std::vector<RegionTuple>& regions,
                                    std::size_t block_count, std::uint64_t staging_bytes,
                                    const std::string& identity, bool checksum) {
  WorkerStack::Options options{.store_url = std::move(store),
                               .store = {.budget_bytes = store_bytes,
                                         .budget_name = "store_bytes",
                                         .timeout = to_duration(store_timeout_s)},
                               .load_timeout = to_duration(load_timeout_s),
                               .layout = std::move(layout),
                               .rank = rank,
                               .rank_count = rank_count,
                               .block_size = block_size,
                               .endpoint = std::move(endpoint),
                               .engine_id = std::move(engine_id),
                               .regions = {},
                               .block_count = block_count,
                               .staging_bytes = staging_bytes,
                               .checksum = checksum,
                               .sole_writer = to_identity_mode(identity) == IdentityMode::kUnique};
  for (const auto& [address, stride, bytes] : regions) {
    options.regions.push_back({reinterpret_cast<std::uint8_t*>(address), stride, bytes});
  }
  return std::make_unique<Worker>(std::move(options));
}

void start_load_kv(Worker& self) {
  WorkerStack& stack = self.stack();
  const py::gil_scoped_release release;
  stack.role().start_load_kv(self.step());
}

void wait_for_save(Worker& self) {
  WorkerStack& stack = self.stack();
  const py::gil_scoped_release release;
  stack.role().wait_for_save(self.step());
}

// The report is None if it says nothing.
py::tuple take_finished(Worker& self) {
  WorkerStack& stack = self.stack();
  WorkerRole::Finished finished = without_gil([&] { return stack.role().take_finished(); });
  const WorkerReport& report = finished.report;
  const bool empty = report.loads.empty() && report.saves.empty() && !report.unbound_epoch &&
                     report.emptied_scopes.empty();
  py::object message = py::none();
  if (!empty) message = to_python(encode_report(report));
  return py::make_tuple(message, finished.loads, finished.failed_loads, finished.failed_blocks);
}

py::dict worker_stats(Worker& self) {
  WorkerStack& stack = self.stack();
  const StoreWorkerStats stats = stack.worker().stats();
  py::dict dict;
  dict["saved_blocks"] = stats.saved_blocks;
  dict["loaded_blocks"] = stats.loaded_blocks;
  dict["missing_blocks"] = stats.missing_blocks;
  dict["corrupt_blocks"] = stats.corrupt_blocks;
  dict["refused_jobs"] = stats.refused_jobs;
  dict["dropped_saves"] = stats.dropped_saves + stack.role().unstaged_saves();
  dict["dropped_loads"] = stats.dropped_loads;
  dict["store_errors"] = stats.store_errors;
  dict["calls_without_store"] = stack.store().calls_without_backend();
  return dict;
}

void bind_worker(py::module_& module) {
  py::class_<Worker>(module, "ConnectorWorker")
      .def(py::init(&make_worker), py::kw_only(), py::arg("store"), py::arg("store_bytes"),
           py::arg("store_timeout_s"), py::arg("load_timeout_s"), py::arg("layout"),
           py::arg("rank"), py::arg("rank_count"), py::arg("block_size"), py::arg("endpoint"),
           py::arg("engine_id"), py::arg("regions"), py::arg("block_count"),
           py::arg("staging_bytes"), py::arg("identity") = "unique", py::arg("checksum") = true)
      .def("bind", &Worker::bind)
      .def("start_load_kv", &start_load_kv)
      .def("wait_for_save", &wait_for_save)
      .def("take_finished", &take_finished)
      .def(
          "note_weight_write",
          [](Worker& self, Epoch sealed_epoch) {
            self.stack().worker().note_weight_write(sealed_epoch);
          },
          py::arg("sealed_epoch") = 0)
      .def_property_readonly(
          "weight_writes",
          [](Worker& self) { return self.stack().worker().status().weight_writes; })
      .def_property_readonly("unfinished_saves",
                             [](Worker& self) { return self.stack().role().unfinished_saves(); })
      .def("stats", &worker_stats)
      .def("close", &Worker::close);
}

}  // namespace

void bind_connector(py::module_& module) {
  bind_scheduler(module);
  bind_worker(module);
}

}  // namespace newmoon
