// Rows of a served rank: from a message into their slots at the ranks of this node, their scales,
// sources and weights beside them. For rows of its own node send_rows.cc and row_metadata.cc do so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/setup/window_view.h"

namespace ferry::internal {

// The row units of a message of dispatch `number`.
void store_rows(const WindowView& view, std::uint64_t number, std::span<const std::byte> units);

}  // namespace ferry::internal
