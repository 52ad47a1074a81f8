// Stores the rows of a served rank from a message in their slots at the ranks of this node, with
// their scales and metadata. send_rows.cc and row_metadata.cc do this for rows of the same node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/setup/window_view.h"

namespace ferry::internal {

// Stores the row units of a message of dispatch `number`, up to the first that does not fit this
// exchange.
void store_rows(const WindowView& view, std::uint64_t number, std::span<const std::byte> units);

}  // namespace ferry::internal
