// The conformance suite between nodes, with ranks as real processes.
#include "conformance.h"

namespace ferry::test {

INSTANTIATE_TEST_SUITE_P(Processes, Conformance,
                         testing::ValuesIn(conformance_cases(Mode::kProcesses, every_shape(), 8)),
                         conformance_name);

}  // namespace ferry::test
