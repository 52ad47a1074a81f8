// The conformance suite with ranks as real processes.
#include "conformance.h"

namespace ferry::test {

INSTANTIATE_TEST_SUITE_P(Processes, Conformance,
                         testing::ValuesIn(conformance_cases(Mode::kProcesses, {1, 2, 3, 4, 7, 8},
                                                             kSeeds)),
                         conformance_name);

}  // namespace ferry::test
