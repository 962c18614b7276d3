// How one step becomes calls of the forward pass: which tokens run together.
#pragma once

#include <cstddef>
#include <vector>

#include "model/model_runner.h"

namespace newmoon {

// One llama_decode. All parts have equally many tokens and their slots are adjacent
// and ascending, so that llama.cpp, which batches only such streams, runs the call as
// planned, in one piece.
struct ModelCall {
  struct Part {
    std::size_t sequence = 0;     // index in StepInput::sequences
    std::size_t first_token = 0;  // index in SequenceStep::tokens
  };
  std::vector<Part> parts;
  std::size_t tokens_each = 0;

  std::size_t rows() const { return parts.size() * tokens_each; }
};

// Sequences with one token run together, the others by themselves in pieces as even
// as can be, none over `rows_max`; every token once, each sequence's in order.
// REQUIRES: rows_max > 0; slots differ.
std::vector<ModelCall> plan_calls(const StepInput& input, std::size_t rows_max);

}  // namespace newmoon
