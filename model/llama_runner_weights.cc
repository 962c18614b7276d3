// LlamaRunner: how weights change, are identified, and leave memory.
#include <llama.h>

#include <bit>
#include <cmath>
#include <utility>

#include "model/llama_runner.h"

namespace newmoon {
namespace {

// The forward pass scales an adapter by scale * alpha / rank, and alpha is not among
// the tensors.
std::string alpha_of(const llama_adapter_lora* adapter) {
  char text[64] = "";
  llama_adapter_meta_val_str(adapter, "adapter.lora.alpha", text, sizeof text);
  return text;
}

Sha256Digest adapter_digest(const LlamaTensors& tensors, const std::string& alpha, float scale) {
  Sha256 hash;
  hash.update(digest_of(tensors));
  hash.update(as_bytes(alpha));
  std::uint8_t bits[4];
  store_le<std::uint32_t>(bits, std::bit_cast<std::uint32_t>(scale));
  hash.update(bits);
  return hash.finish();
}

}  // namespace

Status LlamaRunner::update_weights(const WeightUpdate& update) {
  if (model_ == nullptr) return fail(Code::kUnavailable, "the model is asleep; wake it up");
  return std::visit([&](const auto& change) { return apply(change); }, update);
}

Status LlamaRunner::apply(const LoadGguf& update) {
  Result<GgufFile> file = GgufFile::open(update.path);
  if (!file) return std::unexpected(file.error());
  if (Status same = weights_->check(*file); !same) return same;
  if (file->metadata() != metadata_) {
    return fail(Code::kBadRequest, "model " + update.path +
                                       ": its figures or its vocabulary are not those of the "
                                       "running model; start an engine with it instead");
  }
  if (Status loaded = weights_->reload(*file); !loaded) {
    weights_broken_ = true;
    model_path_ = update.path;
    return fail(Code::kInternal, loaded.error().message +
                                     "; the model cannot be used until a "
                                     "GGUF was loaded");
  }
  weights_broken_ = false;
  model_path_ = update.path;
  return {};
}

Status LlamaRunner::apply(const SetTensors& update) {
  if (weights_broken_) return check_awake();
  return weights_->set(update.tensors);
}

Status LlamaRunner::apply(const SetLora& update) {
  if (Status awake = check_awake(); !awake) return awake;
  if (update.path.empty()) {
    session_->set_adapter(nullptr, 0);
    adapter_.reset();
    return {};
  }
  Result<Adapter> adapter = load_adapter(update);
  if (!adapter) {
    put_adapter_on();
    return std::unexpected(adapter.error());
  }
  adapter_ = std::move(*adapter);
  return {};
}

void LlamaRunner::put_adapter_on() {
  session_->set_adapter(adapter_ ? adapter_->tensors.get() : nullptr,
                        adapter_ ? adapter_->source.scale : 0);
}

// Leaves the new adapter in force in the session.
Result<LlamaRunner::Adapter> LlamaRunner::load_adapter(const SetLora& source) {
  if (!std::isfinite(source.scale) || source.scale == 0) {
    return fail(Code::kBadRequest, "adapter " + source.path +
                                       ": scale must be a number other than 0 (an empty path "
                                       "takes the adapter off)");
  }
  if (Result<GgufFile> file = GgufFile::open(source.path); !file) {
    return std::unexpected(file.error());
  }
  take_llama_error();
  Adapter adapter{
      .source = source,
      .tensors = LlamaAdapterPtr(llama_adapter_lora_init(model_.get(), source.path.c_str()))};
  if (adapter.tensors == nullptr) {
    return fail(Code::kBadRequest, "adapter " + source.path + ": llama.cpp cannot load it (" +
                                       take_llama_error() + "); is it for this model?");
  }
  session_->set_adapter(adapter.tensors.get(), source.scale);
  const Result<LlamaTensors> tensors = session_->adapter_tensors();
  if (!tensors) return std::unexpected(tensors.error());
  adapter.digest = adapter_digest(*tensors, alpha_of(adapter.tensors.get()), source.scale);
  return adapter;
}

Result<DigestIdentity> LlamaRunner::weights_digest() {
  if (weights_broken_) return std::unexpected(check_awake().error());
  if (model_ == nullptr) return fail(Code::kUnavailable, "the model is asleep; wake it up");
  const Sha256Digest base = weights_->digest();
  if (!adapter_) return DigestIdentity{base};
  Sha256 hash;
  hash.update(base);
  hash.update(adapter_->digest);
  return DigestIdentity{hash.finish()};
}

Result<Bytes> LlamaRunner::get_tensor(const std::string& name) const {
  if (model_ == nullptr) return fail(Code::kUnavailable, "the model is asleep; wake it up");
  return weights_->get(name);
}

Status LlamaRunner::sleep(int level) {
  if (level != 1 && level != 2) {
    return fail(Code::kBadRequest, "sleep level " + std::to_string(level) + ": 1 or 2");
  }
  session_.reset();
  if (level == 2) {
    weights_.reset();
    if (adapter_) adapter_->tensors.reset();
    model_.reset();
  }
  return {};
}

Status LlamaRunner::wake_up() {
  if (session_ != nullptr) return {};
  if (model_ != nullptr) {
    if (Status opened = open_session(); !opened) return opened;
    put_adapter_on();
    return {};
  }
  if (Status opened = open_model(model_path_); !opened) return opened;
  weights_broken_ = false;
  if (!adapter_) return {};
  Result<Adapter> adapter = load_adapter(adapter_->source);
  if (!adapter) {
    session_.reset();
    weights_.reset();
    model_.reset();
    return std::unexpected(adapter.error());
  }
  adapter_ = std::move(*adapter);
  return {};
}

}  // namespace newmoon
