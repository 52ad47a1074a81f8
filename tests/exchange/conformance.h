// The conformance suite: every output of random scenarios equals the oracle bit for bit. The tests
// are in conformance.cc; each program that includes this file sets the ranks and seeds for which
// they run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "frame.h"
#include "scenario.h"

namespace ferry::test {

struct ConformanceCase {
  Mode mode = Mode::kThreads;
  Nodes nodes;
  int seed = 0;
};

inline std::ostream& operator<<(std::ostream& stream, const ConformanceCase& c) {
  return stream << c.nodes.of_rank.size() << " " << mode_name(c.mode) << " " << c.nodes.topology
                << ", seed " << c.seed;
}

class Conformance : public testing::TestWithParam<ConformanceCase> {};

inline constexpr int kSeeds = 30;

// Every shape with seeds [0, num_seeds).
inline std::vector<ConformanceCase> conformance_cases(Mode mode, const std::vector<Nodes>& shapes,
                                                      int num_seeds) {
  std::vector<ConformanceCase> cases;
  for (const Nodes& nodes : shapes) {
    for (int seed = 0; seed < num_seeds; ++seed) cases.push_back({mode, nodes, seed});
  }
  return cases;
}

// Every rank count, on one node.
inline std::vector<ConformanceCase> conformance_cases(Mode mode,
                                                      const std::vector<int>& rank_counts,
                                                      int num_seeds) {
  std::vector<Nodes> shapes;
  for (const int num_ranks : rank_counts) shapes.push_back({"", std::vector<int>(num_ranks)});
  return conformance_cases(mode, shapes, num_seeds);
}

// "8_ranks_seed_3", "host_2_rank_3_5_seed_3"
inline std::string conformance_name(const testing::TestParamInfo<ConformanceCase>& info) {
  const Nodes& nodes = info.param.nodes;
  std::string shape = nodes.topology;
  if (shape.empty()) shape = std::to_string(nodes.of_rank.size()) + "_ranks";
  std::replace_if(
      shape.begin(), shape.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return shape + "_seed_" + std::to_string(info.param.seed);
}

// How often the suite has each feature.
inline std::map<std::string, int> features_found(const std::vector<ConformanceCase>& cases) {
  std::map<std::string, int> found;
  for (const ConformanceCase& c : cases) {
    for (const std::uint64_t first_seed : {0, 1000}) {
      const Scenario scenario =
          make_scenario(c.nodes, first_seed + static_cast<std::uint64_t>(c.seed));
      for (const auto& [feature, times] : scenario.features()) found[feature] += times;
    }
  }
  return found;
}

}  // namespace ferry::test
