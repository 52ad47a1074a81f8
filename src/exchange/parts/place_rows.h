// Computes the slots of a route's tokens from the count rows of all ranks, which lie in the segment
// (src/routing/placement.cc has the rules).
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/parts/parts.h"
#include "exchange/protocol/protocol.h"
#include "ferry/status.h"
#include "routing/route.h"

namespace ferry::internal {

// Reads the whole count matrix. Call when all ranks have written their count rows of operation
// `number`.
void place_rows_alone(ExchangeParts& exchange, std::uint64_t number, Route& route);

// The same, in a dispatch whose records all agree. If the matrix is large, the ranks of this node
// sum it together and wait for each other. An error means that the group is broken.
Status place_rows(ExchangeParts& exchange, const Issued& issued, Route& route,
                  std::vector<std::int64_t>* wait_ns);

}  // namespace ferry::internal
