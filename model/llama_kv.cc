#include "model/llama_kv.h"

#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "model/llama_library.h"

namespace newmoon {
namespace {

// Appends to a buffer that is large enough already.
class Writer {
 public:
  explicit Writer(std::uint8_t* at) : at_(at) {}
  template <class Int>
  void put(Int value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  void put(ByteView bytes) {
    std::memcpy(at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  const std::uint8_t* at() const { return at_; }

 private:
  std::uint8_t* at_;
};

const std::uint8_t* row_address(const ggml_tensor* cache, int stream, int cell) {
  return static_cast<const std::uint8_t*>(cache->data) + cache->nb[2] * stream +
         cache->nb[1] * cell;
}

}  // namespace

LlamaKv::LlamaKv(llama_context* context, std::vector<Layer> layers, int block_size,
                 int stream_count)
    : context_(context),
      layers_(std::move(layers)),
      block_size_(block_size),
      stream_count_(stream_count) {
  for (const Layer& layer : layers_) {
    layout_.k_layer_bytes.push_back(layer.k->nb[1] * block_size);
    layout_.v_layer_bytes.push_back(layer.v->nb[1] * block_size);
  }
}

int LlamaKv::length(int stream) const {
  return llama_memory_seq_pos_max(llama_get_memory(context_), stream) + 1;
}

void LlamaKv::truncate(int stream, int tokens) {
  llama_memory_seq_rm(llama_get_memory(context_), stream, tokens, -1);
}

void LlamaKv::export_block(int stream, int block_index, Fragment to) const {
  assert(to.size() == layout_.block_bytes());
  const int cell = block_index * block_size_;
  Writer out(to.data());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    out.put(ByteView{row_address(layers_[i].k, stream, cell), layout_.k_layer_bytes[i]});
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    out.put(ByteView{row_address(layers_[i].v, stream, cell), layout_.v_layer_bytes[i]});
  }
}

// llama.cpp's state of one sequence (llama_kv_cache::state_write in llama-kv-cache.cpp,
// all native-endian): u32 magic, i32 sequence, u32 stream count; per stream u32 cell
// count and, if not 0, cells {i32 position, u32 sequence count = 1, i32 sequence}, u32
// V is transposed, u32 layer count, per layer {i32 type, u64 row bytes, rows} of K,
// then the same of V.
Bytes& LlamaKv::frame(int stream, std::span<const Fragment> blocks) {
  const int token_count = static_cast<int>(blocks.size()) * block_size_;
  const std::size_t bytes = 12 + 4 * stream_count_ + 12 * token_count + 8 +
                            2 * 12 * layers_.size() + blocks.size() * layout_.block_bytes();
  framed_.resize(bytes);
  Writer out(framed_.data());
  out.put(magic_);
  out.put<std::int32_t>(stream);
  out.put<std::uint32_t>(stream_count_);
  for (int i = 0; i < stream; ++i) out.put<std::uint32_t>(0);
  out.put<std::uint32_t>(token_count);
  for (std::int32_t position = 0; position < token_count; ++position) {
    out.put(position);
    out.put<std::uint32_t>(1);
    out.put<std::int32_t>(stream);
  }
  out.put<std::uint32_t>(0);
  out.put<std::uint32_t>(layers_.size());
  std::size_t offset = 0;  // in a block
  const auto put_rows = [&](const ggml_tensor* cache, std::size_t layer_bytes) {
    out.put<std::int32_t>(cache->type);
    out.put<std::uint64_t>(cache->nb[1]);
    for (const Fragment& block : blocks) out.put(ByteView(block.subspan(offset, layer_bytes)));
    offset += layer_bytes;
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    put_rows(layers_[i].k, layout_.k_layer_bytes[i]);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    put_rows(layers_[i].v, layout_.v_layer_bytes[i]);
  }
  for (int i = stream + 1; i < stream_count_; ++i) out.put<std::uint32_t>(0);
  assert(out.at() == framed_.data() + bytes);
  return framed_;
}

Status LlamaKv::import_blocks(int stream, std::span<const Fragment> blocks) {
  truncate(stream, 0);
  if (blocks.empty()) return {};
  const Bytes& framed = frame(stream, blocks);
  take_llama_error();
  if (llama_state_seq_set_data(context_, framed.data(), framed.size(), stream) != framed.size()) {
    return fail(Code::kInternal, "llama.cpp refused the KV of " + std::to_string(blocks.size()) +
                                     " blocks: " + take_llama_error());
  }
  return {};
}

Result<Bytes> LlamaKv::export_by_llama(int stream) const {
  Bytes state(llama_state_seq_get_size(context_, stream));
  if (llama_state_seq_get_data(context_, state.data(), state.size(), stream) != state.size()) {
    return fail(Code::kInternal, "llama.cpp cannot export KV: " + take_llama_error());
  }
  return state;
}

Status LlamaKv::self_test() {
  const auto differs = [](const char* what) {
    return fail(Code::kInternal, std::string("llama.cpp ") + llama_version() + ": its " + what +
                                     " is not the one this build knows; build with the "
                                     "version that cmake/llama.cmake names");
  };
  Bytes block(layout_.block_bytes());
  const Fragment fragment(block);
  export_block(0, 0, fragment);
  const Result<Bytes> state = export_by_llama(0);
  if (!state) return std::unexpected(state.error());
  if (state->size() < 12) return differs("KV state format");
  magic_ = load_le<std::uint32_t>(state->data());
  if (frame(0, {&fragment, 1}) != *state) return differs("KV state format or KV cache layout");

  const int other = stream_count_ - 1;
  if (Status imported = import_blocks(other, {&fragment, 1}); !imported) return imported;
  Bytes back(block.size());
  export_block(other, 0, back);
  truncate(0, 0);
  truncate(other, 0);
  if (back != block) return differs("KV import");
  return {};
}

}  // namespace newmoon
