// Every collective call of a rank, compared with the oracle.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/oracle.h"
#include "ferry/collectives.h"

namespace ferry::test {

// One size and type of the calls. All ranks make the same.
struct CallCase {
  std::uint64_t seed;
  std::int64_t count;
  DataType dtype;
};

// Throws Failure where a result differs in one bit.
void make_moves(Collectives& collectives, const CallCase& c);
void make_reductions(Collectives& collectives, const CallCase& c, ReduceOp op);
// Calls of which some ranks give data in memory of Collectives::allocate: rank r does so if bit
// r % 8 of `ranks` is set.
void make_calls_in_place(Collectives& collectives, const CallCase& c, unsigned ranks);
// A ring of messages, each rank sending first, and messages with tags out of order.
void make_messages(Collectives& collectives, const CallCase& c);

}  // namespace ferry::test
