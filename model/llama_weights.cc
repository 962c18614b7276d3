#include "model/llama_weights.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>

namespace newmoon {
namespace {

Sha256Digest tensor_digest(const std::string& name, const ggml_tensor* tensor) {
  Sha256 hash;
  std::uint8_t head[8 * (2 + GGML_MAX_DIMS)];
  store_le<std::uint64_t>(head, name.size());
  store_le<std::uint64_t>(head + 8, tensor->type);
  for (int i = 0; i < GGML_MAX_DIMS; ++i) {
    store_le<std::uint64_t>(head + 16 + 8 * i, tensor->ne[i]);
  }
  hash.update(head);
  hash.update(as_bytes(name));
  hash.update({static_cast<const std::uint8_t*>(tensor->data), ggml_nbytes(tensor)});
  return hash.finish();
}

std::string describe(int type, const std::int64_t* shape) {
  std::string text = ggml_type_name(static_cast<ggml_type>(type));
  for (int i = 0; i < GGML_MAX_DIMS && (i == 0 || shape[i] != 1); ++i) {
    text += (i == 0 ? " " : "x") + std::to_string(shape[i]);
  }
  return text;
}

}  // namespace

Sha256Digest digest_of(const LlamaTensors& tensors) {
  Sha256 hash;
  for (const auto& [name, tensor] : tensors) hash.update(tensor_digest(name, tensor));
  return hash.finish();
}

Result<LlamaWeights> LlamaWeights::create(const LlamaTensors& tensors, const GgufFile& file) {
  LlamaWeights weights;
  for (const auto& [name, tensor] : tensors) {
    if (!file.tensors().contains(name)) continue;
    weights.entries_[name] = {.tensor = tensor, .digest = std::nullopt};
  }
  if (Status whole = weights.check(file); !whole) return std::unexpected(whole.error());
  return weights;
}

Result<Bytes> LlamaWeights::get(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return fail(Code::kBadRequest, "model has no tensor " + name);
  Bytes bytes(ggml_nbytes(found->second.tensor));
  ggml_backend_tensor_get(found->second.tensor, bytes.data(), 0, bytes.size());
  return bytes;
}

Status LlamaWeights::set(const std::vector<std::pair<std::string, Bytes>>& tensors) {
  for (const auto& [name, bytes] : tensors) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      return fail(Code::kBadRequest, "model has no tensor " + name + "; nothing was written");
    }
    const std::size_t wanted = ggml_nbytes(found->second.tensor);
    if (bytes.size() != wanted) {
      return fail(Code::kBadRequest, "tensor " + name + " takes " + std::to_string(wanted) +
                                         " bytes, not " + std::to_string(bytes.size()) +
                                         "; nothing was written");
    }
  }
  for (const auto& [name, bytes] : tensors) {
    Entry& entry = entries_.at(name);
    entry.digest.reset();
    ggml_backend_tensor_set(entry.tensor, bytes.data(), 0, bytes.size());
  }
  return {};
}

Status LlamaWeights::check(const GgufFile& file) const {
  for (const auto& [name, tensor] : file.tensors()) {
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      return fail(Code::kBadRequest, "model " + file.path() + ": tensor " + name +
                                         " is not one of the running model; start an engine "
                                         "with a model that uses it");
    }
    const ggml_tensor* live = found->second.tensor;
    if (live->type != tensor.type || !std::ranges::equal(tensor.shape, live->ne)) {
      return fail(Code::kBadRequest,
                  "model " + file.path() + ": tensor " + name + " is " +
                      describe(tensor.type, tensor.shape.data()) + ", the running model has " +
                      describe(live->type, live->ne) + "; start an engine with it instead");
    }
  }
  if (file.tensors().size() != entries_.size()) {
    return fail(Code::kBadRequest,
                "model " + file.path() + ": has " + std::to_string(file.tensors().size()) +
                    " tensors, the running model " + std::to_string(entries_.size()));
  }
  return {};
}

Status LlamaWeights::reload(GgufFile& file) {
  Bytes bytes;
  for (auto& [name, entry] : entries_) {
    const GgufTensor& tensor = file.tensors().at(name);
    bytes.resize(tensor.size);
    if (Status read = file.read(tensor, bytes); !read) return read;
    entry.digest.reset();
    ggml_backend_tensor_set(entry.tensor, bytes.data(), 0, bytes.size());
  }
  return {};
}

Sha256Digest LlamaWeights::digest() {
  Sha256 hash;
  for (auto& [name, entry] : entries_) {
    if (!entry.digest) entry.digest = tensor_digest(name, entry.tensor);
    hash.update(*entry.digest);
  }
  return hash.finish();
}

bool LlamaWeights::exact_by_row() const {
  return std::ranges::all_of(entries_, [](const auto& entry) {
    const ggml_tensor* tensor = entry.second.tensor;
    return ggml_n_dims(tensor) < 2 || tensor->type == GGML_TYPE_Q4_1 ||
           tensor->type == GGML_TYPE_Q8_0;
  });
}

}  // namespace newmoon
