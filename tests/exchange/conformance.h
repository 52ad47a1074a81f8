// The conformance suite: every output of random scenarios equals the oracle bit for bit. The tests
// are in conformance.cc; each program that includes this says for which ranks and seeds they run.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "frame.h"

namespace ferry::test {

struct ConformanceCase {
  Mode mode = Mode::kThreads;
  int num_ranks = 1;
  int seed = 0;
};

inline std::ostream& operator<<(std::ostream& stream, const ConformanceCase& c) {
  return stream << c.num_ranks << " " << mode_name(c.mode) << ", seed " << c.seed;
}

class Conformance : public testing::TestWithParam<ConformanceCase> {};

inline constexpr int kSeeds = 30;

// Every rank count with seeds [0, num_seeds).
inline std::vector<ConformanceCase> conformance_cases(Mode mode,
                                                      const std::vector<int>& rank_counts,
                                                      int num_seeds) {
  std::vector<ConformanceCase> cases;
  for (const int num_ranks : rank_counts) {
    for (int seed = 0; seed < num_seeds; ++seed) cases.push_back({mode, num_ranks, seed});
  }
  return cases;
}

// "8_ranks_seed_3"
inline std::string conformance_name(const testing::TestParamInfo<ConformanceCase>& info) {
  return std::to_string(info.param.num_ranks) + "_ranks_seed_" + std::to_string(info.param.seed);
}

}  // namespace ferry::test
