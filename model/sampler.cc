#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace newmoon {
namespace {

float value_of(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

// Sorts token ids: higher logit first, equals by id.
struct Better {
  std::span<const float> logits;
  bool operator()(Token a, Token b) const {
    const float value_a = value_of(logits[a]);
    const float value_b = value_of(logits[b]);
    return value_a != value_b ? value_a > value_b : a < b;
  }
};

Token best_token(std::span<const float> logits) {
  Token best_id = 0;
  float best = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best) {  // never true of a NaN
      best = logits[i];
      best_id = static_cast<Token>(i);
    }
  }
  return best_id;
}

// Ids of tokens of which the `count` best stand in front in order.
void sort_front(std::span<const float> logits, std::vector<Token>& ids, std::size_t count) {
  std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count), Better{logits});
}

std::vector<Token> all_tokens(std::size_t vocab_size) {
  std::vector<Token> ids(vocab_size);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// exp(logit / temperature), relative to the best one's.
double weight_of(float logit, float best, double temperature) {
  return std::exp((static_cast<double>(value_of(logit)) - best) / temperature);
}

// Drops all but the smallest front of `ids` that holds `top_p` of the weight.
void keep_top_p(std::span<const float> logits, const SamplingParams& params, float best,
                std::vector<Token>& ids) {
  double total = 0;
  for (const Token id : ids) total += weight_of(logits[id], best, params.temperature);
  double kept = 0;
  std::size_t count = 0;
  // Few tokens are wanted as a rule, so sort as many as it takes.
  for (std::size_t sorted = 0; count < ids.size(); ++count) {
    if (count == sorted) {
      sorted = std::min(ids.size(), std::max<std::size_t>(64, sorted * 4));
      sort_front(logits, ids, sorted);
    }
    if (count > 0 && kept >= params.top_p * total) break;
    kept += weight_of(logits[ids[count]], best, params.temperature);
  }
  ids.resize(count);
}

Token draw(std::span<const float> logits, const SamplingParams& params,
           std::uint64_t sample_index) {
  const Token best_id = best_token(logits);
  const float best = value_of(logits[best_id]);
  if (!std::isfinite(best)) return best_id;
  std::vector<Token> ids = all_tokens(logits.size());
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < ids.size()) {
    sort_front(logits, ids, static_cast<std::size_t>(params.top_k));
    ids.resize(static_cast<std::size_t>(params.top_k));
  }
  if (params.top_p < 1.0f) keep_top_p(logits, params, best, ids);

  double total = 0;
  for (const Token id : ids) total += weight_of(logits[id], best, params.temperature);
  double left = uniform_of(params.seed, sample_index) * total;
  for (const Token id : ids) {
    left -= weight_of(logits[id], best, params.temperature);
    if (left < 0) return id;
  }
  return best_id;  // rounding left a trace
}

double log_sum_exp(std::span<const float> logits) {
  const float best = value_of(logits[best_token(logits)]);
  if (!std::isfinite(best)) return best;
  double total = 0;
  for (const float logit : logits) total += weight_of(logit, best, 1.0);
  return best + std::log(total);
}

void add_logprobs(std::span<const float> logits, int count, SampledToken& sampled) {
  const double norm = log_sum_exp(logits);
  const auto logprob = [&](Token id) { return static_cast<float>(value_of(logits[id]) - norm); };
  const Better better{logits};
  const auto before = std::ranges::count_if(all_tokens(logits.size()),
                                            [&](Token id) { return better(id, sampled.token); });
  sampled.logprob = TokenLogprob{.token = sampled.token,
                                 .logprob = logprob(sampled.token),
                                 .rank = static_cast<int>(before) + 1};
  std::vector<Token> ids = all_tokens(logits.size());
  const std::size_t wanted = std::min(ids.size(), static_cast<std::size_t>(count));
  sort_front(logits, ids, wanted);
  for (std::size_t i = 0; i < wanted; ++i) {
    sampled.top_logprobs.push_back(
        {.token = ids[i], .logprob = logprob(ids[i]), .rank = static_cast<int>(i) + 1});
  }
}

}  // namespace

double uniform_of(std::uint64_t seed, std::uint64_t sample_index) {
  // splitmix64 as a hash of both, once per input.
  const auto mix = [](std::uint64_t value) {
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ sample_index) >> 11) * 0x1.0p-53;
}

SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                    std::uint64_t sample_index) {
  SampledToken sampled;
  sampled.token = params.temperature > 0 ? draw(logits, params, sample_index) : best_token(logits);
  if (params.logprobs >= 0) add_logprobs(logits, params.logprobs, sampled);
  return sampled;
}

}  // namespace newmoon
