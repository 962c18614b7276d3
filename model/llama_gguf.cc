#include "model/llama_gguf.h"

#include <ggml.h>
#include <gguf.h>

#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "model/llama_library.h"

namespace newmoon {
namespace {

struct GgufDeleter {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
using GgufPtr = std::unique_ptr<gguf_context, GgufDeleter>;

std::size_t scalar_bytes(gguf_type type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
      return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
      return 2;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
      return 8;
    default:
      return 4;
  }
}

void hash_text(Sha256& hash, std::string_view text) {
  std::uint8_t length[8];
  store_le<std::uint64_t>(length, text.size());
  hash.update(length);
  hash.update(as_bytes(text));
}

void hash_array(Sha256& hash, const gguf_context* gguf, std::int64_t key) {
  const gguf_type type = gguf_get_arr_type(gguf, key);
  const std::size_t count = gguf_get_arr_n(gguf, key);
  hash_text(hash, gguf_type_name(type));
  if (type != GGUF_TYPE_STRING) {
    const auto* data = static_cast<const std::uint8_t*>(gguf_get_arr_data(gguf, key));
    hash.update({data, count * scalar_bytes(type)});
    return;
  }
  for (std::size_t i = 0; i < count; ++i) hash_text(hash, gguf_get_arr_str(gguf, key, i));
}

Sha256Digest hash_value(const gguf_context* gguf, std::int64_t key) {
  Sha256 hash;
  const gguf_type type = gguf_get_kv_type(gguf, key);
  hash_text(hash, gguf_type_name(type));
  if (type == GGUF_TYPE_ARRAY) {
    hash_array(hash, gguf, key);
  } else if (type == GGUF_TYPE_STRING) {
    hash_text(hash, gguf_get_val_str(gguf, key));
  } else {
    const auto* data = static_cast<const std::uint8_t*>(gguf_get_val_data(gguf, key));
    hash.update({data, scalar_bytes(type)});
  }
  return hash.finish();
}

bool shapes_the_model(std::string_view key) {
  return key == "general.architecture" ||
         (!key.starts_with("general.") && key != "tokenizer.chat_template");
}

GgufTensor describe(const gguf_context* gguf, std::int64_t index) {
  const std::int64_t* ne = gguf_get_tensor_ne(gguf, index);
  return {.type = gguf_get_tensor_type(gguf, index),
          .shape = std::vector<std::int64_t>(ne, ne + GGML_MAX_DIMS),
          .offset = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, index),
          .size = gguf_get_tensor_size(gguf, index)};
}

}  // namespace

Result<GgufFile> GgufFile::open(const std::string& path) {
  init_llama();
  GgufFile out;
  out.path_ = path;
  out.file_.open(path, std::ios::binary);
  if (!std::filesystem::is_regular_file(path) || !out.file_) {
    return fail(Code::kUnavailable, "GGUF " + path + ": cannot be read; check the path");
  }
  take_llama_error();
  const GgufPtr gguf(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
  if (gguf == nullptr) {
    return fail(Code::kBadRequest, "GGUF " + path + ": not a GGUF file (" + take_llama_error() +
                                       "); is the download complete?");
  }
  for (std::int64_t i = 0; i < gguf_get_n_kv(gguf.get()); ++i) {
    const std::string key = gguf_get_key(gguf.get(), i);
    if (shapes_the_model(key)) out.metadata_[key] = hash_value(gguf.get(), i);
  }
  const std::uint64_t file_bytes = std::filesystem::file_size(path);
  for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
    const GgufTensor tensor = describe(gguf.get(), i);
    const std::string name = gguf_get_tensor_name(gguf.get(), i);
    if (tensor.offset + tensor.size > file_bytes) {
      return fail(Code::kBadRequest, "GGUF " + path + ": ends within tensor " + name + " (" +
                                         std::to_string(file_bytes) +
                                         " bytes); is the download complete?");
    }
    out.tensors_[name] = tensor;
  }
  return out;
}

Sha256Digest GgufFile::metadata_digest() const {
  Sha256 hash;
  for (const auto& [key, digest] : metadata_) {
    hash_text(hash, key);
    hash.update(digest);
  }
  return hash.finish();
}

Status GgufFile::read(const GgufTensor& tensor, MutableByteView to) {
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(tensor.offset));
  file_.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
  if (!file_) return fail(Code::kUnavailable, "GGUF " + path_ + ": reading stopped short");
  return {};
}

}  // namespace newmoon
