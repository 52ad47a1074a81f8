// One rank of conformance_test.py: plays the scenarios of the conformance suite between nodes on a
// group that spans hosts, and compares every output with the oracle bit for bit.
//   conformance_rank TOPOLOGY
// The last line of rank 0 is "NUM scenarios".
#include <exception>
#include <iostream>

#include "exchange/player.h"

namespace ferry::test {
namespace {

constexpr std::uint64_t kSeeds = kSanitized ? 8 : 24;  // as conformance_nodes_test.cc
constexpr std::uint64_t kFirstOfHalves = 1000;         // as conformance.cc

int play_all(const Nodes& nodes) {
  GroupOptions options;
  options.deadline = std::chrono::seconds(60);
  options.topology = nodes.topology;
  Group group = Group::from_environment(options);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    play(group, make_scenario(nodes, seed), {});
    play(group, make_scenario(nodes, seed + kFirstOfHalves), {.halves = true, .delays = true});
  }
  if (group.rank() == 0) std::cout << 2 * kSeeds << " scenarios" << std::endl;
  return 0;
}

}  // namespace
}  // namespace ferry::test

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("wrong number of arguments");
    return ferry::test::play_all(ferry::test::nodes_of(argv[1]));
  } catch (const std::exception& error) {
    std::cerr << "conformance_rank: " << error.what() << '\n';
    return 1;
  }
}
