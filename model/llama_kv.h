// The KV of a context's streams, as blocks: copied out to and in from host memory.
// With kv_unified=false each sequence owns a stream of cells, and as a stream is only
// ever filled in order and cut at its end, cell i holds position i.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "model/kv_arena.h"

struct ggml_tensor;
struct llama_context;

namespace newmoon {

// One thread at a time.
class LlamaKv {
 public:
  // The cache tensors of a layer: rows of one token, cells, streams.
  struct Layer {
    ggml_tensor* k = nullptr;
    ggml_tensor* v = nullptr;
  };

  // Borrows the context, which owns the tensors.
  LlamaKv(llama_context* context, std::vector<Layer> layers, int block_size, int stream_count);

  // Of one block, tokens of a layer together: [layer][token][row].
  const KvLayout& layout() const { return layout_; }

  // Proves on stream 0, which must hold exactly one block, that the rows read by
  // export_block and the framing written by import_blocks are what this version of
  // llama.cpp reads and writes itself; empties the stream. kInternal if not.
  Status self_test();

  int length(int stream) const;  // tokens
  // Drops the tokens from `tokens` on.
  void truncate(int stream, int tokens);
  // REQUIRES: the block is full; `to` has layout().block_bytes().
  void export_block(int stream, int block_index, Fragment to) const;
  // The stream becomes exactly these blocks, at positions 0...
  Status import_blocks(int stream, std::span<const Fragment> blocks);

 private:
  Bytes& frame(int stream, std::span<const Fragment> blocks);
  Result<Bytes> export_by_llama(int stream) const;

  llama_context* context_;
  std::vector<Layer> layers_;
  int block_size_;
  int stream_count_;
  KvLayout layout_;
  std::uint32_t magic_ = 0;  // of llama.cpp's state format; learned by self_test()
  Bytes framed_;             // kept between imports: fresh pages cost more than the copy
};

}  // namespace newmoon
