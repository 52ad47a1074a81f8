// Bytes that each rank of a simulation has allocated and not freed. private_memory.cc has operator
// new of the program, so only programs that count are linked with it.
#pragma once

#include <cstdint>

namespace ferry::test {

std::int64_t allocated_bytes(int rank);
void forget_allocations();  // of earlier runs

}  // namespace ferry::test
