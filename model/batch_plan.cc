#include "model/batch_plan.h"

#include <algorithm>

namespace newmoon {
namespace {

void plan_pieces(std::size_t sequence, std::size_t token_count, std::size_t rows_max,
                 std::vector<ModelCall>& calls) {
  const std::size_t piece_count = (token_count + rows_max - 1) / rows_max;
  for (std::size_t piece = 0; piece < piece_count; ++piece) {
    const std::size_t first = token_count * piece / piece_count;
    const std::size_t last = token_count * (piece + 1) / piece_count;
    calls.push_back(
        {.parts = {{.sequence = sequence, .first_token = first}}, .tokens_each = last - first});
  }
}

}  // namespace

std::vector<ModelCall> plan_calls(const StepInput& input, std::size_t rows_max) {
  std::vector<ModelCall> calls;
  std::vector<std::size_t> singles;
  for (std::size_t i = 0; i < input.sequences.size(); ++i) {
    const std::size_t token_count = input.sequences[i].tokens.size();
    if (token_count == 1) {
      singles.push_back(i);
    } else {
      plan_pieces(i, token_count, rows_max, calls);
    }
  }
  const auto slot = [&](std::size_t i) { return input.sequences[i].slot; };
  std::ranges::sort(singles, {}, slot);
  int slot_before = -2;
  for (const std::size_t i : singles) {
    const bool adjacent = slot(i) == slot_before + 1;
    if (!adjacent || calls.back().parts.size() == rows_max) {
      calls.push_back({.parts = {}, .tokens_each = 1});
    }
    calls.back().parts.push_back({.sequence = i, .first_token = 0});
    slot_before = slot(i);
  }
  return calls;
}

}  // namespace newmoon
