#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "python/bindings/bind.h"

namespace newmoon {
namespace {

std::vector<py::bytes> hash_blocks(const BlockHasher& hasher, const std::vector<Token>& tokens,
                                   const std::string& cache_salt,
                                   const std::optional<std::pair<std::string, std::string>>& lora) {
  ExtraKeys extra;
  extra.cache_salt = cache_salt;
  if (lora) extra.lora = {lora->first, lora->second};
  std::vector<BlockHash> chain;
  ok_or_raise(hasher.extend(tokens, extra, chain));
  std::vector<py::bytes> hashes;
  hashes.reserve(chain.size());
  for (const BlockHash& hash : chain) hashes.push_back(to_python(hash.bytes()));
  return hashes;
}

BlockHasher make_hasher(const std::string& algorithm, int block_size,
                        std::optional<std::string> seed) {
  const HashAlgo algo = value_or_raise(parse_hash_algo(algorithm));
  if (block_size <= 0) {
    raise({Code::kBadRequest, "block_size " + std::to_string(block_size) + ": must be positive"});
  }
  return {algo, block_size, std::move(seed)};
}

Scope make_scope(std::string model, std::string layout, std::string name_space,
                 const std::optional<py::bytes>& digest, const std::optional<std::string>& label) {
  const std::optional<WeightsIdentity> weights = to_weights(digest, label);
  if (!weights) {
    raise({Code::kBadRequest,
           "a scope needs the weights' digest or label; unique scopes come from a Fence"});
  }
  return {std::move(name_space), std::move(model), std::move(layout), *weights};
}

}  // namespace

BlockHash to_block_hash(const py::handle& bytes) {
  if (!PyBytes_Check(bytes.ptr())) throw py::type_error("a block hash is a bytes object");
  const ByteView view = as_bytes(std::string_view(
      PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))));
  if (view.empty() || view.size() > BlockHash::kMaxSize) {
    raise(
        {Code::kBadRequest, "a block hash has 1 to 32 bytes, not " + std::to_string(view.size())});
  }
  return BlockHash(view);
}

// Of a list, as vLLM has it, each item is a pointer away; any other sequence is copied into one.
std::vector<BlockHash> to_block_hashes(const py::sequence& hashes, std::size_t begin) {
  const auto list = py::reinterpret_steal<py::object>(PySequence_Fast(hashes.ptr(), "no sequence"));
  if (!list) throw py::error_already_set();
  const std::span items(PySequence_Fast_ITEMS(list.ptr()),
                        static_cast<std::size_t>(PySequence_Fast_GET_SIZE(list.ptr())));
  std::vector<BlockHash> chain;
  chain.reserve(items.size() - std::min(begin, items.size()));
  for (PyObject* item : items.subspan(std::min(begin, items.size()))) {
    chain.push_back(to_block_hash(item));
  }
  return chain;
}

std::optional<WeightsIdentity> to_weights(const std::optional<py::bytes>& digest,
                                          const std::optional<std::string>& label) {
  if (digest && label) raise({Code::kBadRequest, "digest and label: give one of them"});
  if (label) return LabelIdentity{*label};
  if (!digest) return std::nullopt;
  const ByteView view = view_of(*digest);
  DigestIdentity identity;
  if (view.size() != identity.sha256.size()) {
    raise(
        {Code::kBadRequest, "digest: a SHA-256 has 32 bytes, not " + std::to_string(view.size())});
  }
  std::ranges::copy(view, identity.sha256.begin());
  return identity;
}

void bind_hash(py::module_& module) {
  py::class_<BlockHasher>(module, "BlockHasher")
      .def(py::init(&make_hasher), py::kw_only(), py::arg("algorithm") = "sha256",
           py::arg("block_size") = 16, py::arg("seed") = py::none())
      .def_property_readonly("block_size", &BlockHasher::block_size)
      .def_property_readonly(
          "algorithm", [](const BlockHasher& self) { return std::string(to_string(self.algo())); })
      .def_property_readonly(
          "none_hash", [](const BlockHasher& self) { return to_python(self.none_hash().bytes()); })
      .def("hash_blocks", &hash_blocks, py::arg("tokens"), py::kw_only(),
           py::arg("cache_salt") = "", py::arg("lora") = py::none());

  py::class_<Scope>(module, "Scope")
      .def(py::init(&make_scope), py::kw_only(), py::arg("model"), py::arg("layout"),
           py::arg("namespace") = "", py::arg("digest") = py::none(), py::arg("label") = py::none())
      .def_readonly("namespace", &Scope::name_space)
      .def_readonly("model", &Scope::model)
      .def_readonly("layout", &Scope::layout)
      .def_property_readonly("id", [](const Scope& self) { return self.id().hex(); })
      .def_property_readonly("is_unique", &Scope::is_unique)
      .def(
          "__eq__", [](const Scope& self, const Scope& other) { return self == other; },
          py::is_operator())
      .def("__hash__", [](const Scope& self) { return std::hash<ScopeId>{}(self.id()); })
      .def("__repr__", [](const Scope& self) {
        return "<newmoon.Scope " + self.id().hex() + (self.is_unique() ? ", unique>" : ", named>");
      });
}

}  // namespace newmoon
