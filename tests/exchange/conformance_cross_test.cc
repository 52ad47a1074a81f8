// A small part of the conformance suite, quick enough for an emulated processor.
#include "conformance.h"

namespace ferry::test {

INSTANTIATE_TEST_SUITE_P(Threads, Conformance,
                         testing::ValuesIn(conformance_cases(Mode::kThreads, {1, 3, 4}, 4)),
                         conformance_name);

INSTANTIATE_TEST_SUITE_P(Processes, Conformance,
                         testing::ValuesIn(conformance_cases(Mode::kProcesses, {2, 3}, 2)),
                         conformance_name);

}  // namespace ferry::test
