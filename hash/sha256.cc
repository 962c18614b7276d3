#include "hash/sha256.h"

#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>

namespace newmoon {
namespace {

// A digest that cannot be computed has no honest substitute.
void require(bool done, const char* what) {
  if (done) return;
  std::fprintf(stderr, "OpenSSL: %s failed; check that its default provider offers SHA-256\n",
               what);
  std::abort();
}

// EVP_sha256() would be fetched anew by every init (OpenSSL 3), which costs more
// than hashing a block does.
const EVP_MD* fetched_sha256() {
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  require(kSha256 != nullptr, "EVP_MD_fetch");
  return kSha256;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  require(context_ != nullptr, "EVP_MD_CTX_new");
  require(EVP_DigestInit_ex2(context_, fetched_sha256(), nullptr) == 1, "EVP_DigestInit_ex2");
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::update(ByteView bytes) {
  require(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1, "EVP_DigestUpdate");
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  require(EVP_DigestFinal_ex(context_, digest.data(), nullptr) == 1, "EVP_DigestFinal_ex");
  require(EVP_DigestInit_ex2(context_, nullptr, nullptr) == 1, "EVP_DigestInit_ex2");
  return digest;
}

Sha256Digest sha256(ByteView message) {
  Sha256 hasher;
  hasher.update(message);
  return hasher.finish();
}

}  // namespace newmoon
