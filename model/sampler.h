// From logits to a token. Pure: the random number is a function of the seed and of
// how many tokens were sampled before, so that neither batching, nor preemption, nor
// a restart changes what a request says.
#pragma once

#include <cstdint>
#include <span>

#include "model/model_runner.h"

namespace newmoon {

// Greedy (temperature 0): the lowest id among the best. Otherwise temperature, then
// top_k, then top_p (the smallest set of best tokens with at least that probability,
// never empty). Logprobs are of the logits as they are, before temperature; equals
// rank by id. NaN counts as -infinity. REQUIRES: logits is not empty.
SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                    std::uint64_t sample_index);

// In [0, 1), a function of its arguments.
double uniform_of(std::uint64_t seed, std::uint64_t sample_index);

}  // namespace newmoon
