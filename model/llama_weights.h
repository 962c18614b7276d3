// The weight tensors of a loaded model, in place: read, written, identified.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "hash/sha256.h"
#include "model/llama_gguf.h"
#include "model/llama_session.h"

namespace newmoon {

// SHA-256 over the tensors in name order, of each its name, type, shape and bytes.
Sha256Digest digest_of(const LlamaTensors& tensors);

// One thread at a time. Borrows the tensors, which the model owns.
class LlamaWeights {
 public:
  // kBadRequest: the forward pass does not use every tensor of `file`, so that the
  // digest would not cover them all.
  static Result<LlamaWeights> create(const LlamaTensors& tensors, const GgufFile& file);

  // The bytes as they stand in a GGUF file. kBadRequest: no such tensor.
  Result<Bytes> get(const std::string& name) const;
  // Nothing is written if a name or size is wrong (kBadRequest).
  Status set(const std::vector<std::pair<std::string, Bytes>>& tensors);

  // Whether `file` has the same tensors, types and shapes; kBadRequest names the first
  // that differs.
  Status check(const GgufFile& file) const;
  // Overwrites all tensors. REQUIRES: check(file). On an error some are overwritten.
  Status reload(GgufFile& file);

  // As digest_of(); tensors not written since the last call are not read again.
  Sha256Digest digest();
  // Whether every matrix is of a type whose product with one row is the same alone as
  // among others: Q4_1 and Q8_0. With F16 and F32, ggml takes another path for one row.
  bool exact_by_row() const;

 private:
  struct Entry {
    ggml_tensor* tensor = nullptr;
    std::optional<Sha256Digest> digest;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace newmoon
