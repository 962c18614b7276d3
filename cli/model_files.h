// Where `./dev setup` put the models and the problems, and the prompts made of them.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace newmoon {

// $NEWMOON_CACHE, else $XDG_CACHE_HOME/newmoon, else $HOME/.cache/newmoon.
std::string cache_folder();

struct ModelFiles {
  std::string base;      // SmolLM2-135M-Instruct, Q4_1, as shipped
  std::string other;     // Q4_1 with other weights
  std::string adapter;   // LoRA
  std::string problems;  // HumanEval, JSON lines
};
ModelFiles default_model_files();

// Problems under one few-shot prefix: `prefix` holds the first problems with their
// canonical solutions, `problems` the prompts of the rest.
struct PromptSet {
  std::string prefix;
  std::vector<std::string> problems;
};
// `shots` problems go into the prefix. kBadRequest or kUnavailable naming the file
// (and the line) if it cannot be read or is not HumanEval.
Result<PromptSet> load_prompts(const std::string& path, int shots);

}  // namespace newmoon
