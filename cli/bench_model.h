// `newmoon bench model`: what the llama.cpp runner gains by KV from blocks, and what it
// costs beside llama.cpp alone.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace newmoon {

struct ModelBenchOptions {
  std::string model_path;
  int runs = 3;               // of the first token; the figures are medians
  int threads = 0;            // of fast mode; 0: all
  int generated_tokens = 64;  // a sequence; the figures are of the median step
};

// One row a case and mode:
//   "first_token_hit_<mode>"  value: ms to the first token with 1,504 of 1,520 prompt
//       tokens from blocks; peer: ms with all of them computed; ratio = peer / value;
//       required: at least 30
//   "generate_<n>_<mode>"     value: tokens/s of n sequences through LlamaRunner; peer:
//       through llama.cpp's own loop in the same process, with the same threads, n_ubatch,
//       flash attention, streams and batch; ratio = value / peer; required: at least 0.95
//   "resident_memory_<mode>"  value: MB resident, less those before the runner was loaded;
//       peer: MB of model file, streams and blocks; ratio = value - peer (sic: MB over);
//       required: at most 200
struct ModelBenchRow {
  std::string case_name;
  double value = 0;
  double peer = 0;
  double ratio = 0;
};

// Runs, or single steps, of value and peer alternate, on the calling thread. Errors as of
// LlamaRunner.
Result<std::vector<ModelBenchRow>> bench_model(const ModelBenchOptions& options);

}  // namespace newmoon
