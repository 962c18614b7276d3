// SHA-256 by OpenSSL; hash/sha256.cc is the only file that touches it.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace newmoon {

using Sha256Digest = std::array<std::uint8_t, 32>;

// A reusable hashing context: the algorithm is looked up once a process, the
// context is allocated once an object, so a message costs only its hashing. One
// thread at a time. Aborts if OpenSSL has no SHA-256: nothing could be identified.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(ByteView bytes);
  // The digest of all updates since construction or the last finish().
  Sha256Digest finish();

 private:
  evp_md_ctx_st* context_;
};

// The digest of one message. Any thread may call.
Sha256Digest sha256(ByteView message);

}  // namespace newmoon
