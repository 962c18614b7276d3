// Order statistics of the benchmarks' samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <vector>

namespace newmoon {

// The sample at `share` of the way from the least to the greatest: 0.5 is the median of
// an odd number. REQUIRES: at least one sample, 0 <= share <= 1.
template <std::ranges::input_range Samples>
auto percentile(const Samples& samples, double share) {
  std::vector<std::ranges::range_value_t<Samples>> sorted(samples.begin(), samples.end());
  const auto at = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1));
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(at));
  return sorted[at];
}

template <std::ranges::input_range Samples>
auto median(const Samples& samples) {
  return percentile(samples, 0.5);
}

}  // namespace newmoon
