// A GGUF file's table of contents, and its tensors' bytes on request. Format:
// llama.cpp's ggml/include/gguf.h. Needed beside llama.cpp's own loader to check a
// file against the model that runs before a byte of it is overwritten.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "hash/sha256.h"

namespace newmoon {

struct GgufTensor {
  int type = 0;                     // ggml_type
  std::vector<std::int64_t> shape;  // fastest dimension first, 4 of them
  std::uint64_t offset = 0;         // in the file, bytes
  std::uint64_t size = 0;           // bytes
};

// One thread at a time.
class GgufFile {
 public:
  // kUnavailable: cannot be read. kBadRequest: not a GGUF file, or shorter than the
  // tensors it announces.
  static Result<GgufFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  // Of the values that shape the forward pass or the vocabulary, by key: SHA-256 of
  // type and value. Names, licences and the like are left out.
  const std::map<std::string, Sha256Digest>& metadata() const { return metadata_; }
  // Of all metadata() in one.
  Sha256Digest metadata_digest() const;

  // REQUIRES: to.size() == tensor.size. kUnavailable: the file cannot be read.
  Status read(const GgufTensor& tensor, MutableByteView to);

 private:
  std::string path_;
  std::ifstream file_;
  std::map<std::string, GgufTensor> tensors_;
  std::map<std::string, Sha256Digest> metadata_;
};

}  // namespace newmoon
