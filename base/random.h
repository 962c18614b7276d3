// Randomness, given by constructor so that a simulator can own it.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace newmoon {

class Random {
 public:
  virtual ~Random() = default;
  virtual std::uint64_t next() = 0;

  // Uniform in [0, bound); bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // True with probability percent/100.
  bool chance(unsigned percent) { return below(100) < percent; }
};

// getrandom(2). Any thread may call.
class SystemRandom final : public Random {
 public:
  std::uint64_t next() override;
};

// splitmix64: the same seed gives the same sequence on every machine. One thread.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() override;

 private:
  std::uint64_t state_;
};

}  // namespace newmoon
