// Choices: the source of the random choices of a simulated run. They are drawn from a seed, or
// enumerated: then every run with at most a few disturbances is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "exchange/random.h"

namespace ferry::test {

class Choices {
 public:
  virtual ~Choices() = default;
  // In [0, options). 0 is the ordinary course; the others come about once in `rarity` times.
  virtual int choose(int options, int rarity) = 0;
  // Whether all choices are tried, so that few should be offered.
  virtual bool enumerates() const { return false; }
};

class RandomChoices final : public Choices {
 public:
  explicit RandomChoices(std::uint64_t seed) : random_(seed, 5000) {}
  int choose(int options, int rarity) override {
    if (options < 2 || !random_.one_in(rarity)) return 0;
    return 1 + static_cast<int>(random_.below(options - 1));
  }

 private:
  Random random_;
};

// Depth first: next() prepares the next run, and returns false when all runs have been made.
class BoundedChoices final : public Choices {
 public:
  explicit BoundedChoices(int most_deviations) : most_(most_deviations) {}

  int choose(int options, int) override {
    if (at_ == taken_.size()) taken_.push_back({0, options});
    if (taken_[at_].options != options)
      throw std::logic_error("the same choices led to another run");
    return taken_[at_++].value;
  }
  bool enumerates() const override { return true; }
  bool next() {
    at_ = 0;
    int deviations = 0;
    for (const Taken& taken : taken_) deviations += taken.value > 0 ? 1 : 0;
    for (; !taken_.empty(); taken_.pop_back()) {
      Taken& last = taken_.back();
      const int before = deviations - (last.value > 0 ? 1 : 0);
      if (last.value + 1 < last.options && before < most_) {
        ++last.value;
        return true;
      }
      deviations = before;
    }
    return false;
  }

 private:
  struct Taken {
    int value, options;
  };
  const int most_;
  std::vector<Taken> taken_;
  std::size_t at_ = 0;
};

}  // namespace ferry::test
