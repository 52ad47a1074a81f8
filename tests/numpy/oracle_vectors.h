// The parts of oracle_vectors: each draws cases of its kinds and writes inputs and what the oracle
// makes of them. To add a kind: a function here, and its recomputation in check.py.
#pragma once

#include "exchange/random.h"
#include "numpy/vector_file.h"

namespace ferry::test {

void write_dispatch_wires(VectorFile& file, Random& random);
void write_combine_wires(VectorFile& file, Random& random);
void write_constant_terms(VectorFile& file, Random& random);
void write_norms(VectorFile& file, Random& random);

// Both operations of random scenarios on 1 to 8 ranks, and the vector that a real CANN run printed.
void write_exchanges(VectorFile& file, std::uint64_t seed);
void write_cann_golden(VectorFile& file);

}  // namespace ferry::test
