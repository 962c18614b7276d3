// The weights that the demo goes through, and how to get from one to the next: every
// way a model's weights change in practice.
//
//   base     the shipped GGUF
//   norms    base with its norm tensors perturbed in place (named tensors)
//   adapter  base with a LoRA adapter
//   other    another GGUF
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/model_files.h"
#include "model/llama_runner.h"

namespace newmoon {

class DemoWeights {
 public:
  // `runner` holds base now. Borrowed.
  static Result<DemoWeights> create(LlamaRunner& runner, ModelFiles files);

  // The updates that lead from the weights in force to those named, in order.
  // kBadRequest: no such name.
  Result<std::vector<WeightUpdate>> updates_to(const std::string& name) const;
  // The updates were done.
  void note_current(const std::string& name) { current_ = name; }

 private:
  explicit DemoWeights(ModelFiles files) : files_(std::move(files)) {}

  ModelFiles files_;
  std::string current_ = "base";
  SetTensors base_norms_;
  SetTensors perturbed_norms_;
};

}  // namespace newmoon
