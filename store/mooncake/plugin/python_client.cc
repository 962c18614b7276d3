// newmoon_mooncake.so: MooncakeClient by way of the wheel's Python binding. Linked
// against no libpython: the program loads one first, with RTLD_GLOBAL, since the wheel's
// extension modules expect its symbols there.
#include <utility>

#include "store/mooncake/client.h"
#include "store/mooncake/plugin/interpreter.h"
#include "store/mooncake/plugin/python.h"
#include "store/mooncake/plugin/signals.h"

namespace newmoon {
namespace {

using python::Gil;
using python::Object;

// Two lists of Python's alike in shape: of addresses and of sizes.
struct BufferLists {
  Object addresses;
  Object sizes;
  explicit operator bool() const { return addresses && sizes; }
};

BufferLists make_lists(const MooncakeBuffer& buffer) {
  return {python::make_int(reinterpret_cast<std::uintptr_t>(buffer.data)),
          python::make_int(buffer.bytes)};
}

// A list of what each of `parts` is; empty if an exception was raised.
template <class Parts>
BufferLists make_lists(const Parts& parts) {
  const auto count = static_cast<Py_ssize_t>(parts.size());
  BufferLists lists{Object(PyList_New(count)), Object(PyList_New(count))};
  if (!lists) return {};
  Py_ssize_t i = 0;
  for (const auto& part : parts) {
    BufferLists made = make_lists(part);
    if (!made) return {};
    PyList_SET_ITEM(lists.addresses.get(), i, made.addresses.release());
    PyList_SET_ITEM(lists.sizes.get(), i++, made.sizes.release());
  }
  return lists;
}

Result<std::int64_t> to_code(const char* what, const Object& answer) {
  if (!answer) return python::raised(what);
  const long long code = PyLong_AsLongLong(answer.get());
  if (code == -1 && PyErr_Occurred() != nullptr) return python::raised(what);
  return code;
}

Status to_codes(const char* what, const Object& answer, std::span<std::int64_t> codes) {
  if (!answer) return python::raised(what);
  if (!PyList_Check(answer.get()) ||
      PyList_GET_SIZE(answer.get()) != static_cast<Py_ssize_t>(codes.size())) {
    return fail(Code::kInternal, std::string("mooncake ") + what + ": not one code an item");
  }
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = PyLong_AsLongLong(PyList_GET_ITEM(answer.get(), static_cast<Py_ssize_t>(i)));
  }
  if (PyErr_Occurred() != nullptr) return python::raised(what);
  return {};
}

// What a ReplicaDescriptor is asked for, made once: many are asked.
struct ReplicaNames {
  Object is_memory_replica, get_memory_descriptor, buffer_descriptor, buffer_address, size;

  static ReplicaNames make() {
    return {Object(PyUnicode_InternFromString("is_memory_replica")),
            Object(PyUnicode_InternFromString("get_memory_descriptor")),
            Object(PyUnicode_InternFromString("buffer_descriptor")),
            Object(PyUnicode_InternFromString("buffer_address")),
            Object(PyUnicode_InternFromString("size"))};
  }
};

// A ReplicaDescriptor; bytes 0: not in memory. An exception stands if one was raised.
MooncakeBuffer to_buffer(PyObject* replica, const ReplicaNames& names) {
  const Object in_memory = python::call_method(replica, names.is_memory_replica);
  if (in_memory.get() != Py_True) return {};
  const Object memory = python::call_method(replica, names.get_memory_descriptor);
  const Object buffer = python::attribute(memory, names.buffer_descriptor);
  const Object address = python::attribute(buffer, names.buffer_address);
  if (!address) return {};
  const Object size = python::attribute(buffer, names.size);
  if (!size) return {};
  return {PyLong_AsVoidPtr(address.get()), PyLong_AsUnsignedLongLong(size.get())};
}

// `lists`: a dictionary of lists of ReplicaDescriptor by key.
Status to_replicas(const char* what, const Object& lists, const Object& keys,
                   const ReplicaNames& names, std::span<std::vector<MooncakeBuffer>> replicas) {
  if (!lists) return python::raised(what);
  if (!PyDict_Check(lists.get())) {
    return fail(Code::kInternal, std::string("mooncake ") + what + ": no dictionary");
  }
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    PyObject* const key = PyList_GET_ITEM(keys.get(), static_cast<Py_ssize_t>(i));
    PyObject* const list = PyDict_GetItemWithError(lists.get(), key);  // borrowed
    if (PyErr_Occurred() != nullptr) return python::raised(what);
    const Py_ssize_t count = list != nullptr && PyList_Check(list) ? PyList_GET_SIZE(list) : 0;
    for (Py_ssize_t j = 0; j < count; ++j) {
      const MooncakeBuffer found = to_buffer(PyList_GET_ITEM(list, j), names);
      if (PyErr_Occurred() != nullptr) return python::raised(what);
      if (found.bytes > 0) replicas[i].push_back(found);
    }
  }
  return {};
}

// The bound methods of one MooncakeDistributedStore.
struct Methods {
  Object setup, register_buffer, batch_put_from_multi_buffers, batch_get_into, batch_is_exist,
      batch_get_replica_desc, get_size, upsert_from, batch_remove, remove_by_regex, remove_all,
      health_check, close;

  static Result<Methods> of(const Object& store) {
    Methods methods;
    const std::pair<Object*, const char*> names[] = {
        {&methods.setup, "setup"},
        {&methods.register_buffer, "register_buffer"},
        {&methods.batch_put_from_multi_buffers, "batch_put_from_multi_buffers"},
        {&methods.batch_get_into, "batch_get_into"},
        {&methods.batch_is_exist, "batch_is_exist"},
        {&methods.batch_get_replica_desc, "batch_get_replica_desc"},
        {&methods.get_size, "get_size"},
        {&methods.upsert_from, "upsert_from"},
        {&methods.batch_remove, "batch_remove"},
        {&methods.remove_by_regex, "remove_by_regex"},
        {&methods.remove_all, "remove_all"},
        {&methods.health_check, "health_check"},
        {&methods.close, "close"},
    };
    for (const auto& [method, name] : names) {
      *method = Object(PyObject_GetAttrString(store.get(), name));
      if (!*method) return python::raised("MooncakeDistributedStore");
    }
    return methods;
  }
};

class PythonClient final : public MooncakeClient {
 public:
  PythonClient(Object store, Methods methods)
      : store_(std::move(store)),
        methods_(std::move(methods)),
        replica_names_(ReplicaNames::make()),
        force_(Py_NewRef(Py_True)) {}
  ~PythonClient() override {
    const Gil gil;  // for the members, which go here
    force_ = Object();
    replica_names_ = ReplicaNames();
    methods_ = Methods();
    store_ = Object();
  }

  Result<std::int64_t> setup(const MooncakeConfig& config) override {
    const KeepSignalHandlers keep;
    const Gil gil;
    const Object arguments(PyTuple_New(0));
    const Object options(Py_BuildValue(
        "{ss ss sK sK ss ss ss ss}", "local_hostname", config.local_hostname.c_str(),
        "metadata_server", config.metadata_server.c_str(), "global_segment_size",
        static_cast<unsigned long long>(config.global_segment_bytes), "local_buffer_size",
        static_cast<unsigned long long>(config.local_buffer_bytes), "protocol",
        config.protocol.c_str(), "rdma_devices", config.device_name.c_str(), "master_server_addr",
        config.master_server_address.c_str(), "tenant_id", config.tenant_id.c_str()));
    if (!arguments || !options) return python::raised("setup");
    const Object code(PyObject_Call(methods_.setup.get(), arguments.get(), options.get()));
    python::exit_before_destructors();
    return to_code("setup", code);
  }

  Result<std::int64_t> register_buffer(MooncakeBuffer buffer) override {
    const Gil gil;
    const Object address = python::make_int(reinterpret_cast<std::uintptr_t>(buffer.data));
    return to_code("register_buffer",
                   python::call(methods_.register_buffer, address, python::make_int(buffer.bytes)));
  }

  Status batch_put_from(std::span<const std::string_view> keys,
                        std::span<const MooncakeValue> values,
                        std::span<std::int64_t> codes) override {
    return transfer("batch_put_from", methods_.batch_put_from_multi_buffers, keys, values, codes);
  }

  Status batch_get_into(std::span<const std::string_view> keys,
                        std::span<const MooncakeBuffer> values,
                        std::span<std::int64_t> codes) override {
    return transfer("batch_get_into", methods_.batch_get_into, keys, values, codes);
  }

  Status batch_is_exist(std::span<const std::string_view> keys,
                        std::span<std::int64_t> codes) override {
    const Gil gil;
    const Object list = python::make_list(keys);
    if (!list) return python::raised("batch_is_exist");
    return to_codes("batch_is_exist", python::call(methods_.batch_is_exist, list), codes);
  }

  Status batch_get_replica_desc(std::span<const std::string_view> keys,
                                std::span<std::vector<MooncakeBuffer>> replicas) override {
    const Gil gil;
    const Object list = python::make_list(keys);
    if (!list) return python::raised("batch_get_replica_desc");
    return to_replicas("batch_get_replica_desc",
                       python::call(methods_.batch_get_replica_desc, list), list, replica_names_,
                       replicas);
  }

  Result<std::int64_t> get_size(std::string_view key) override {
    const Gil gil;
    return to_code("get_size", python::call(methods_.get_size, python::make_text(key)));
  }

  Result<std::int64_t> upsert_from(std::string_view key, MooncakeBuffer value) override {
    const Gil gil;
    const Object address = python::make_int(reinterpret_cast<std::uintptr_t>(value.data));
    return to_code("upsert_from", python::call(methods_.upsert_from, python::make_text(key),
                                               address, python::make_int(value.bytes)));
  }

  Status batch_remove(std::span<const std::string_view> keys,
                      std::span<std::int64_t> codes) override {
    const Gil gil;
    const Object list = python::make_list(keys);
    if (!list) return python::raised("batch_remove");
    return to_codes("batch_remove", python::call(methods_.batch_remove, list, force_), codes);
  }

  Result<std::int64_t> remove_by_regex(const std::string& pattern) override {
    const Gil gil;
    return to_code("remove_by_regex",
                   python::call(methods_.remove_by_regex, python::make_text(pattern), force_));
  }

  Result<std::int64_t> remove_all() override {
    const Gil gil;
    return to_code("remove_all", python::call(methods_.remove_all, force_));
  }

  Result<std::int64_t> health_check() override {
    const Gil gil;
    return to_code("health_check", python::call(methods_.health_check));
  }

  Result<std::int64_t> close() override {
    const Gil gil;
    return to_code("close", python::call(methods_.close));
  }

 private:
  template <class Values>
  static Status transfer(const char* what, const Object& method,
                         std::span<const std::string_view> keys, const Values& values,
                         std::span<std::int64_t> codes) {
    const Gil gil;
    const Object list = python::make_list(keys);
    const BufferLists buffers = make_lists(values);
    if (!list || !buffers) return python::raised(what);
    return to_codes(what, python::call(method, list, buffers.addresses, buffers.sizes), codes);
  }

  Object store_;
  Methods methods_;
  ReplicaNames replica_names_;
  Object force_;
};

Result<std::unique_ptr<MooncakeClient>> make_client(const std::string& wheel_folder,
                                                    MooncakeLog log) {
  const Result<PyObject*> module = python::import_mooncake(wheel_folder, log);
  if (!module) return std::unexpected(module.error());
  const KeepSignalHandlers keep;
  const Gil gil;
  const Object type(PyObject_GetAttrString(*module, "MooncakeDistributedStore"));
  if (!type) return python::raised("import");
  Object store = python::call(type);
  if (!store) return python::raised("MooncakeDistributedStore");
  Result<Methods> methods = Methods::of(store);
  if (!methods) return std::unexpected(methods.error());
  return std::make_unique<PythonClient>(std::move(store), std::move(*methods));
}

}  // namespace
}  // namespace newmoon

// MooncakePluginFunction of store/mooncake/client.h.
extern "C" __attribute__((visibility("default"))) bool newmoon_mooncake_client(
    const std::string& wheel_folder, newmoon::MooncakeLog log,
    std::unique_ptr<newmoon::MooncakeClient>& client, newmoon::Error& error) {
  auto made = newmoon::make_client(wheel_folder, log);
  if (made) {
    client = std::move(*made);
    return true;
  }
  error = made.error();
  return false;
}
