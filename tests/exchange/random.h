// Random: the one source of chance in these tests; the same sequence for a seed on every machine.
#pragma once

#include <cstdint>

namespace ferry::test {

class Random {
 public:
  // Different `streams` of one seed are independent: per rank, per round and the like.
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0)
      : state_(seed * 0x9e3779b97f4a7c15ULL + stream) {
    next();
    state_ ^= stream << 32;
  }

  // SplitMix64.
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // In [0, limit).
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(limit));
  }
  // In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool one_in(std::int64_t n) { return below(n) == 0; }

  template <typename Container>
  auto pick(const Container& choices) {
    return *(choices.begin() + below(static_cast<std::int64_t>(choices.size())));
  }

  // In [-2, 2), exactly representable in few bits now and then, sometimes a zero of either sign.
  float value() {
    if (one_in(16)) return one_in(2) ? 0.0F : -0.0F;
    if (one_in(16)) return static_cast<float>(between(-8, 8)) * 0.25F;
    return static_cast<float>(between(-(1 << 23), (1 << 23) - 1)) * 0x1p-22F;
  }

 private:
  std::uint64_t state_;
};

}  // namespace ferry::test
