// Place rows: the count rows of all ranks become the slots of a route's tokens. Reads the segment
// and places them by src/routing/placement.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/parts/parts.h"
#include "exchange/protocol/protocol.h"
#include "ferry/status.h"
#include "routing/route.h"

namespace ferry::internal {

// When all ranks have written their count rows of operation `number`. Reads the whole matrix.
void place_rows_alone(ExchangeParts& exchange, std::uint64_t number, Route& route);

// The same in a dispatch that all its ranks find good. Where the matrix is large, the ranks of this
// node sum it together, and wait for each other; an error broke the group.
Status place_rows(ExchangeParts& exchange, const Issued& issued, Route& route,
                  std::vector<std::int64_t>* wait_ns);

}  // namespace ferry::internal
