#include <algorithm>
#include <memory>
#include <optional>

#include "base/executor.h"
#include "python/bindings/bind.h"
#include "store/make_store.h"

namespace newmoon {
namespace {

// A store with what it stands on. Blocks of one rank: shard 0 of everything. Its own threads
// may want the GIL, so it is opened and closed without.
class OpenStore {
 public:
  OpenStore(const std::string& url, const StoreOptions& options)
      : executor_(std::make_unique<ThreadExecutor>("nm-store")),
        store_(value_or_raise(open(url, options))) {}
  ~OpenStore() { close(); }
  OpenStore(const OpenStore&) = delete;
  OpenStore& operator=(const OpenStore&) = delete;

  KvStore& get() {
    if (store_ == nullptr) raise({Code::kBadRequest, "the store is closed"});
    if (closing_.is_forked()) {
      raise({Code::kBadRequest, "the store was opened before a fork; open it in the child"});
    }
    return *store_;
  }
  // What the caller does with get(), while others run.
  template <class Work>
  auto call(Work work) {
    ++calls_;
    const struct Done {
      int& calls;
      ~Done() { --calls; }
    } done{calls_};
    return without_gil(std::move(work));
  }
  void close() {
    if (closing_.is_forked()) {
      static_cast<void>(store_.release());  // its threads are the parent's
      static_cast<void>(executor_.release());
      return;
    }
    if (calls_ > 0) raise({Code::kBusy, "the store cannot be closed while a call is under way"});
    std::unique_ptr<ThreadExecutor> executor = std::move(executor_);
    std::unique_ptr<KvStore> store = std::move(store_);
    const py::gil_scoped_release release;
    store.reset();
    executor.reset();
  }

 private:
  Result<std::unique_ptr<KvStore>> open(const std::string& url, const StoreOptions& options) {
    return without_gil([&] { return make_store(url, options, clock_, *executor_); });
  }

  int calls_ = 0;  // under way; guarded by the GIL
  SystemClock clock_;
  std::unique_ptr<ThreadExecutor> executor_;
  std::unique_ptr<KvStore> store_;
  const CloseAtExit closing_{[this] { close(); }};
};

// The bytes of a C-contiguous buffer, for as long as `info` lives.
MutableByteView bytes_of(const py::buffer_info& info) {
  py::ssize_t stride = info.itemsize;
  for (py::ssize_t i = info.ndim - 1; i >= 0; --i) {
    if (info.strides[i] != stride && info.shape[i] > 1) {
      raise({Code::kBadRequest, "the buffer is not contiguous"});
    }
    stride *= info.shape[i];
  }
  return {static_cast<std::uint8_t*>(info.ptr),
          static_cast<std::size_t>(info.size * info.itemsize)};
}

// None is what a sealed fence has for a scope.
const Scope& required(const Scope* scope) {
  if (scope == nullptr) {
    raise(
        {Code::kBadRequest, "the scope is None: while a fence is sealed, neither look up nor put"});
  }
  return *scope;
}

void put(OpenStore& self, const Scope* scope_or_none, const py::bytes& block_hash,
         const py::buffer& data) {
  const Scope& scope = required(scope_or_none);
  const py::buffer_info info = data.request();
  const ConstFragment payload = bytes_of(info);
  const Key key{scope.id(), Shard{}, to_block_hash(block_hash)};
  const PutItem item{key, make_header(key, layout_id(scope.layout), payload.size()),
                     std::span(&payload, 1), true};
  KvStore& store = self.get();
  ok_or_raise(self.call([&] { return store.put(std::span(&item, 1)); }).at(0));
}

// Rule SELF: what came back is checked before the caller may use it.
Status get_checked(KvStore& store, const Key& key, const LayoutId& layout, Fragment payload) {
  const GetItem item{key, std::span(&payload, 1), true};
  const std::vector<Result<GetValue>> values = store.get(std::span(&item, 1));
  const Result<GetValue>& value = values.at(0);
  if (!value) return std::unexpected(value.error());
  return verify_header(value->header, key, layout, payload.size(), value->payload_checksum, true);
}

bool get(OpenStore& self, const Scope* scope_or_none, const py::bytes& block_hash,
         const py::buffer& out) {
  const Scope& scope = required(scope_or_none);
  const py::buffer_info info = out.request(true);
  const Fragment payload = bytes_of(info);
  const Key key{scope.id(), Shard{}, to_block_hash(block_hash)};
  KvStore& store = self.get();
  const LayoutId layout = layout_id(scope.layout);
  const Status status = self.call([&] { return get_checked(store, key, layout, payload); });
  if (status) return true;
  if (status.error().code == Code::kMiss) return false;
  raise(status.error());
}

std::size_t lookup(OpenStore& self, const Scope* scope_or_none, const py::sequence& block_hashes) {
  const Scope& scope = required(scope_or_none);
  const std::vector<BlockHash> hashes = to_block_hashes(block_hashes);
  const Shard shard;
  KvStore& store = self.get();
  return value_or_raise(
      self.call([&] { return store.hit_prefix(scope.id(), std::span(&shard, 1), hashes); }));
}

void purge(OpenStore& self, const Scope* scope_or_none) {
  const Scope& scope = required(scope_or_none);
  KvStore& store = self.get();
  ok_or_raise(self.call([&] { return store.purge_scope(scope.id(), scope.is_unique()); }));
}

py::dict stats(OpenStore& self) {
  KvStore& store = self.get();
  const StoreStats stats = value_or_raise(self.call([&] { return store.stats(); }));
  py::dict dict;
  dict["blocks"] = stats.blocks;
  dict["bytes"] = stats.bytes;
  dict["bytes_to_free"] = stats.bytes_to_free;
  dict["budget_bytes"] = stats.budget_bytes;
  dict["evicted_blocks"] = stats.evicted_blocks;
  dict["refused_late_puts"] = stats.refused_late_puts;
  dict["unfinished_purges"] = stats.unfinished_purges;
  dict["owed_rechecks"] = stats.owed_rechecks;
  dict["recheck_left_s"] = stats.recheck_left_s;
  dict["breaker_opens"] = stats.breaker_opens;
  dict["calls_without_backend"] = stats.calls_without_backend;
  return dict;
}

py::list scopes(OpenStore& self) {
  KvStore& store = self.get();
  py::list list;
  for (const ScopeUsage& usage : value_or_raise(self.call([&] { return store.list_scopes(); }))) {
    py::dict dict;
    dict["scope"] = usage.scope.hex();
    dict["description"] = usage.description;
    dict["blocks"] = usage.blocks;
    dict["bytes"] = usage.bytes;
    dict["holders"] = usage.holders;
    list.append(std::move(dict));
  }
  return list;
}

std::unique_ptr<OpenStore> open_store(const std::string& url, std::uint64_t budget_bytes,
                                      double timeout_s) {
  return std::make_unique<OpenStore>(url, StoreOptions{.budget_bytes = budget_bytes,
                                                       .budget_name = "budget_bytes",
                                                       .timeout = to_duration(timeout_s)});
}

void check_store(const std::string& url) { ok_or_raise(check_store_url(url)); }

// None: it answers. Of a Mooncake store this process would become a member: not asked.
std::optional<std::string> store_is_away(const std::string& url, double timeout_s) {
  if (!url.starts_with("ipc://")) return std::nullopt;
  const StoreOptions options{.timeout = to_duration(timeout_s), .leave_alone = false};
  const Status pinged = without_gil([&]() -> Status {
    SystemClock clock;
    InlineExecutor executor;
    const Result<std::unique_ptr<KvStore>> store = make_store(url, options, clock, executor);
    return store ? (*store)->ping() : std::unexpected(store.error());
  });
  if (pinged) return std::nullopt;
  return pinged.error().message;
}

}  // namespace

void bind_store(py::module_& module) {
  py::class_<OpenStore>(module, "Store")
      .def("put", &put, py::arg("scope"), py::arg("block_hash"), py::arg("data"))
      .def("get", &get, py::arg("scope"), py::arg("block_hash"), py::arg("out"))
      .def("lookup", &lookup, py::arg("scope"), py::arg("block_hashes"))
      .def("purge", &purge, py::arg("scope"))
      .def("stats", &stats)
      .def("scopes", &scopes)
      .def("close", &OpenStore::close)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](OpenStore& self, const py::args&) { self.close(); });
  module.def("open_store", &open_store, py::arg("url"), py::kw_only(),
             py::arg("budget_bytes") = std::uint64_t{1} << 30, py::arg("timeout_s") = 1.0);
  module.def("check_store", &check_store, py::arg("url"));
  module.def("store_is_away", &store_is_away, py::arg("url"), py::kw_only(), py::arg("timeout_s"));
}

}  // namespace newmoon
