// Scope: everything that must agree for KV bytes to be reusable, and its id.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>

#include "base/bytes.h"
#include "base/random.h"

namespace newmoon {

// Monotonic count of fences of one engine; never reused (connector/fence.h).
using Epoch = std::uint64_t;

// 128 random bits that name one life of one process.
struct Incarnation {
  std::array<std::uint8_t, 16> bytes{};
  friend bool operator==(const Incarnation&, const Incarnation&) = default;
};
Incarnation draw_incarnation(Random& random);

// SHA-256 of the weights in memory: all tensors of all ranks in rank order, and
// the adapters in force with their scales. Whoever has the same bytes has the
// same identity, so a scope of it is *named* and can be returned to.
struct DigestIdentity {
  std::array<std::uint8_t, 32> sha256{};
  friend bool operator==(const DigestIdentity&, const DigestIdentity&) = default;
};

// A label that the user vouches for (`trust_weight_version`), valid inside a
// namespace that holds a run id. Named.
struct LabelIdentity {
  std::string label;
  friend bool operator==(const LabelIdentity&, const LabelIdentity&) = default;
};

// Weights nobody else can ever have, and nobody can return to. *Unique*.
struct UniqueIdentity {
  Incarnation incarnation;
  Epoch epoch = 0;
  friend bool operator==(const UniqueIdentity&, const UniqueIdentity&) = default;
};

using WeightsIdentity = std::variant<DigestIdentity, LabelIdentity, UniqueIdentity>;

// First 16 bytes of SHA-256 over the scope's canonical CBOR (docs/formats.md).
struct ScopeId {
  std::array<std::uint8_t, 16> bytes{};
  std::string hex() const { return to_hex(bytes); }
  friend auto operator<=>(const ScopeId&, const ScopeId&) = default;
};

struct Scope {
  std::string name_space;  // tenant, run or experiment; "" is a namespace too
  std::string model;       // full name or path as configured
  std::string layout;      // KV layout and numerics: block size, dtype, ranks, engine
  WeightsIdentity weights;

  bool is_unique() const { return std::holds_alternative<UniqueIdentity>(weights); }
  Bytes canonical_cbor() const;
  ScopeId id() const;
  friend bool operator==(const Scope&, const Scope&) = default;
};

}  // namespace newmoon

template <>
struct std::hash<newmoon::ScopeId> {
  std::size_t operator()(const newmoon::ScopeId& id) const noexcept {
    return newmoon::load_le<std::uint64_t>(id.bytes.data());
  }
};
