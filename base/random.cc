#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace newmoon {

std::uint64_t SystemRandom::next() {
  std::uint64_t value = 0;
  ssize_t got = 0;
  do {
    got = getrandom(&value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  // Requests up to 256 bytes are never cut short once the pool is ready, so
  // anything else is a broken kernel, and a made-up identity would be worse.
  if (got != static_cast<ssize_t>(sizeof value)) {
    std::perror("getrandom");
    std::abort();
  }
  return value;
}

std::uint64_t SeededRandom::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace newmoon
