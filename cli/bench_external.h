// Part of `newmoon bench model`: the time to the first token of a long prompt whose KV
// comes from the store, through the whole engine, beside computing it.
#pragma once

#include "base/result.h"
#include "cli/bench_model.h"

namespace newmoon {

// "first_token_external_<mode>"  value: ms with all but the last block of 1,520 prompt
// tokens found in the memory store (lookup over ipc, load, import); peer: ms with all of
// them computed; ratio = peer / value; required: at least 30.
Result<ModelBenchRow> bench_external_hit(const ModelBenchOptions& options);

}  // namespace newmoon
