// Metadata of rows: the source, weight and ids that a receiver gets with each row. Each source
// lists the metadata of its rows in its own memory, beside its counts; each receiver of the same
// node copies its part from there (docs/decisions/row_metadata.md). Rows from other nodes carry
// theirs with them (internode/stored_rows.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "exchange/parts/parts.h"
#include "ferry/exchange.h"
#include "routing/route.h"

namespace ferry::internal {

// Where the metadata of a row is.
struct RowMetadata {
  std::int32_t* source;  // source member, token, k
  float* weights;        // [WindowLayout::weights_per_row()]
  std::int32_t* ids;     // [WindowLayout::ids_per_row()]
};

// Writes the metadata of the row that refs[entry] names.
void fill_metadata(const Setup& setup, const Route& route, const DispatchArgs& args,
                   std::int64_t entry, const RowMetadata& to);

// Before this rank announces dispatch `number`, and after its count row is written: lists its rows
// in their order: by member, column, token and k (kRankMajor: by member and token).
void list_rows(ExchangeParts& exchange, std::uint64_t number, const Route& route,
               const DispatchArgs& args);

// When all ranks have announced it, and before this rank says that it delivered: copies the
// metadata of the rows that ranks of this node send to it into its receive buffer.
void take_metadata(const ExchangeParts& exchange, std::uint64_t number, const Route& route,
                   std::byte* buffer);

}  // namespace ferry::internal
