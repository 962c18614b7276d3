#include "hash/scope.h"

#include <algorithm>

#include "hash/cbor.h"
#include "hash/sha256.h"

namespace newmoon {
namespace {

constexpr std::string_view kScopeTag = "nm-scope-1";

void write_identity(CborWriter& cbor, const DigestIdentity& identity) {
  cbor.array(2);
  cbor.text("digest");
  cbor.bytes(identity.sha256);
}

void write_identity(CborWriter& cbor, const LabelIdentity& identity) {
  cbor.array(2);
  cbor.text("label");
  cbor.text(identity.label);
}

void write_identity(CborWriter& cbor, const UniqueIdentity& identity) {
  cbor.array(3);
  cbor.text("unique");
  cbor.bytes(identity.incarnation.bytes);
  cbor.unsigned_integer(identity.epoch);
}

void write_scope(CborWriter& cbor, const Scope& scope) {
  cbor.array(5);
  cbor.text(kScopeTag);
  cbor.text(scope.name_space);
  cbor.text(scope.model);
  cbor.text(scope.layout);
  std::visit([&](const auto& identity) { write_identity(cbor, identity); }, scope.weights);
}

}  // namespace

Incarnation draw_incarnation(Random& random) {
  Incarnation incarnation;
  store_le(incarnation.bytes.data(), random.next());
  store_le(incarnation.bytes.data() + 8, random.next());
  return incarnation;
}

Bytes Scope::canonical_cbor() const {
  MessageBuffer buffer;
  CborWriter cbor(buffer);
  write_scope(cbor, *this);
  return Bytes(buffer.view().begin(), buffer.view().end());
}

ScopeId Scope::id() const {
  MessageBuffer buffer;
  CborWriter cbor(buffer);
  write_scope(cbor, *this);
  const Sha256Digest digest = sha256(buffer.view());
  ScopeId id;
  std::copy_n(digest.begin(), id.bytes.size(), id.bytes.begin());
  return id;
}

}  // namespace newmoon
