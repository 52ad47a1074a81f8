// The parts of vectors_test.cc: each draws cases of its kinds and adds inputs and what the oracle
// makes of them. To add a kind: a function here, and new frozen digests.
#pragma once

#include "exchange/random.h"
#include "oracle/case_digests.h"

namespace ferry::test {

void add_dispatch_wires(CaseDigests& cases, Random& random);
void add_combine_wires(CaseDigests& cases, Random& random);
void add_constant_terms(CaseDigests& cases, Random& random);
void add_norms(CaseDigests& cases, Random& random);

// Both operations of random scenarios on 1 to 8 ranks, and the vector that a real CANN run printed.
void add_exchanges(CaseDigests& cases, std::uint64_t seed);
void add_cann_golden(CaseDigests& cases);

}  // namespace ferry::test
