#include "cli/demo_weights.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace newmoon {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"base", "norms", "adapter", "other"};

// Every fifth weight of a norm (f32) grows by up to a quarter: enough to change what a
// small model says, not enough to make it babble.
Bytes perturbed(const Bytes& norm) {
  Bytes result = norm;
  for (std::size_t i = 0; i + sizeof(float) <= result.size(); i += sizeof(float)) {
    float weight = 0;
    std::memcpy(&weight, &result[i], sizeof weight);
    weight *= 1.0f + 0.05f * static_cast<float>((i / sizeof(float)) % 5);
    std::memcpy(&result[i], &weight, sizeof weight);
  }
  return result;
}

}  // namespace

Result<DemoWeights> DemoWeights::create(LlamaRunner& runner, ModelFiles files) {
  DemoWeights weights(std::move(files));
  for (int layer = 0; layer < runner.info().layer_count; ++layer) {
    const std::string name = "blk." + std::to_string(layer) + ".attn_norm.weight";
    Result<Bytes> norm = runner.get_tensor(name);
    if (!norm) return std::unexpected(norm.error());
    weights.perturbed_norms_.tensors.emplace_back(name, perturbed(*norm));
    weights.base_norms_.tensors.emplace_back(name, std::move(*norm));
  }
  return weights;
}

Result<std::vector<WeightUpdate>> DemoWeights::updates_to(const std::string& name) const {
  if (std::ranges::find(kNames, name) == kNames.end()) {
    return fail(Code::kBadRequest, "there are no weights called " + name);
  }
  std::vector<WeightUpdate> updates;
  if (name == current_) return updates;
  if (current_ == "norms") updates.push_back(base_norms_);
  if (current_ == "adapter") updates.push_back(SetLora{});
  if (current_ == "other") updates.push_back(LoadGguf{files_.base});
  if (name == "norms") updates.push_back(perturbed_norms_);
  if (name == "adapter") updates.push_back(SetLora{.path = files_.adapter, .scale = 1.0f});
  if (name == "other") updates.push_back(LoadGguf{files_.other});
  return updates;
}

}  // namespace newmoon
