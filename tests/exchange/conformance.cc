// The tests of the conformance suite.
#include "conformance.h"

#include "player.h"

namespace ferry::test {

TEST_P(Conformance, WholeCallsEqualTheOracle) {
  const ConformanceCase& c = GetParam();
  run_scenario(c.mode, make_scenario(c.nodes, static_cast<std::uint64_t>(c.seed)), {});
}

TEST_P(Conformance, HalvesInAnyLegalOrderEqualTheOracle) {
  const ConformanceCase& c = GetParam();
  run_scenario(c.mode, make_scenario(c.nodes, static_cast<std::uint64_t>(c.seed) + 1000),
               {.halves = true, .delays = true});
}

}  // namespace ferry::test
