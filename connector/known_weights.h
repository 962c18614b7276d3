// KnownWeights: what is known of the weights that an engine's ranks have, and so what may name
// the scope that a fence opens. For EngineCore, and for the scheduler of an engine in Python.
//
// Rule BIND: a digest and a label are of the weights as they were when each rank had counted so
// many writes. They name nothing once a rank has counted another one, announced or not.
//
// Rule SEAL: nothing names the weights of ranks that counted differently, as an update may have
// reached some of them only. Their scope is unique, which is safe whatever they hold: it has no
// name that others could know, and a rank that is written later refuses it by its own count.
//
// One thread. Nothing here blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hash/identity_mode.h"
#include "hash/scope.h"

namespace newmoon {

class KnownWeights {
 public:
  // `name_space`: that of the scopes. A label counts only inside one that is not empty: it must
  // hold a run id.
  KnownWeights(IdentityMode mode, std::string_view name_space)
      : labels_may_count_(mode == IdentityMode::kTrustedLabel && !name_space.empty()) {}

  // Rule SEAL, before weights are written: nothing said so far is of what comes.
  void forget();

  // `writes`: by rank, the writes it had counted. REQUIRES: the mode is kDigest.
  void set_digest(DigestIdentity digest, std::vector<std::uint64_t> writes);

  // The user's word for the weights. The same one once more says nothing new, so that one from
  // before a write does not come to name what was written. Another one names nothing before
  // bind_label(), with what the ranks had counted as it was told. False: that would be in vain.
  bool set_label(std::string label);
  void bind_label(std::vector<std::uint64_t> writes);
  const std::string& label() const { return label_; }
  // Bound, and one that names weights: not "" nor vLLM's "default".
  bool label_is_trusted() const;

  // Of ranks that have counted so many writes each. nullopt: their scope must be unique.
  std::optional<WeightsIdentity> identity_at(std::span<const std::uint64_t> writes) const;

 private:
  struct Digest {
    DigestIdentity identity;
    std::vector<std::uint64_t> writes;
  };

  const bool labels_may_count_;
  std::optional<Digest> digest_;
  std::string label_;
  std::optional<std::vector<std::uint64_t>> label_writes_;
};

}  // namespace newmoon
