// Metadata of rows: the source, weight and ids that a receiver gets with each row. Each source
// writes the metadata of its rows to a row list in the segment of its node. Each receiver of that
// node copies its part from there (docs/decisions/row_metadata.md). Messages between nodes have the
// metadata with each row (internode/stored_rows.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "exchange/parts/parts.h"
#include "ferry/exchange.h"
#include "routing/route.h"

namespace ferry::internal {

// The addresses of a row's metadata.
struct RowMetadata {
  std::int32_t* source;  // source member, token, k
  float* weights;        // [WindowLayout::weights_per_row()]
  std::int32_t* ids;     // [WindowLayout::ids_per_row()]
};

// Writes the metadata of the row that refs[entry] names.
void fill_metadata(const Setup& setup, const Route& route, const DispatchArgs& args,
                   std::int64_t entry, const RowMetadata& to);

// Lists this rank's rows, ordered by member, column, token and k (kRankMajor: by member and token).
// Call when this rank's count row of dispatch `number` is written, before it announces.
void list_rows(ExchangeParts& exchange, std::uint64_t number, const Route& route,
               const DispatchArgs& args);

// Copies the metadata of the rows that ranks of this node send to this rank into its receive
// buffer. Call when all ranks have announced dispatch `number`, before this rank publishes that it
// delivered.
void take_metadata(const ExchangeParts& exchange, std::uint64_t number, const Route& route,
                   std::byte* buffer);

}  // namespace ferry::internal
