#include "connector/known_weights.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/log.h"

namespace newmoon {

void KnownWeights::forget() {
  digest_.reset();
  label_writes_.reset();
}

void KnownWeights::set_digest(DigestIdentity digest, std::vector<std::uint64_t> writes) {
  digest_ = {digest, std::move(writes)};
}

bool KnownWeights::set_label(std::string label) {
  if (label == label_) return false;
  label_writes_.reset();
  label_ = std::move(label);
  return labels_may_count_;
}

void KnownWeights::bind_label(std::vector<std::uint64_t> writes) {
  label_writes_ = std::move(writes);
}

bool KnownWeights::label_is_trusted() const {
  return labels_may_count_ && label_writes_ && !label_.empty() && label_ != "default";
}

std::optional<WeightsIdentity> KnownWeights::identity_at(
    std::span<const std::uint64_t> writes) const {
  if (std::ranges::adjacent_find(writes, std::not_equal_to{}) != writes.end()) {
    if (digest_ || label_is_trusted()) {
      log(LogLevel::kWarning, "known_weights",
          "the ranks counted different numbers of weight writes, so nothing names their weights: "
          "the scope is this engine's own");
    }
    return std::nullopt;
  }
  if (digest_ && std::ranges::equal(digest_->writes, writes)) return digest_->identity;
  if (label_is_trusted() && std::ranges::equal(*label_writes_, writes)) {
    return LabelIdentity{label_};
  }
  return std::nullopt;
}

}  // namespace newmoon
