// Where the outputs of this rank's experts lie when peers read them: in place, or copied into a
// buffer of the window. Part of Combine.
#include <fmt/format.h>

#include <cstring>

#include "exchange/combine/combine.h"

namespace ferry::internal {

// Rows and weights that lie in a pinned buffer of the window are read in place, all others are
// copied into a free one.
Status Combine::publish_outputs() {
  Pool& pool = *exchange_.pool;
  const Rows& rows = args_.expert_rows;
  const std::size_t rows_bytes = extent_of(rows);
  const std::size_t weights_bytes =
      args_.row_weights ? rows.num_rows * setup_.layout.weights_per_row() * sizeof(float) : 0;
  const auto found = [&](const void* data, std::size_t bytes) {
    return args_.in_place ? pool.find(data, bytes).buffer : std::nullopt;
  };
  const std::optional<int> rows_in = found(rows.data, rows_bytes);
  const std::optional<int> weights_in = found(args_.row_weights, weights_bytes);
  Record& mine = exchange_.protocol.new_record(number(),
                                               {.kind = OperationKind::kCombine,
                                                .weights = args_.row_weights ? Agreed::kYes
                                                           : rows.num_rows   ? Agreed::kNo
                                                                             : Agreed::kAny,
                                                .row_type = rows.dtype,
                                                .hidden = static_cast<std::uint32_t>(rows.hidden),
                                                .route = unplaced_ ? 0 : route_->number},
                                               args_.terms);
  mine.has_share = args_.share_of_zero != nullptr;
  if (mine.has_share) mine.share_of_zero = *args_.share_of_zero;
  mine.num_rows = static_cast<std::int32_t>(rows.num_rows);
  mine.published = {.rows_offset = 0, .pitch_bytes = pitch_of(rows), .weights_offset = 0};
  if (rows_in) {
    mine.published.rows_offset = pool.offset_of(rows.data);
    pool.mark_published(*rows_in, number());
  }
  if (weights_in) {
    mine.published.weights_offset = pool.offset_of(args_.row_weights);
    pool.mark_published(*weights_in, number());
  }
  const bool stage_rows = rows_bytes > 0 && !rows_in;
  const bool stage_weights = weights_bytes > 0 && !weights_in;
  return stage_rows || stage_weights ? stage(mine, stage_rows, stage_weights) : Status{};
}

// A buffer that is free now is always there (docs/protocol.md); a combine must not wait before it
// is announced. Rows are copied in the wire format of combine, where that is smaller and nothing is
// added to them before they travel.
Status Combine::stage(Record& mine, bool rows, bool weights) {
  Pool& pool = *exchange_.pool;
  const int buffer = pool.free_buffer(exchange_.protocol.min_read_through()).value();
  const std::int64_t num_rows = args_.expert_rows.num_rows;
  const std::size_t raw_row = dense_pitch(args_.expert_rows);
  const std::size_t encoded_row = row_format().wire_bytes();
  const bool encoded = rows && encoded_row < raw_row && active().num_positions == 1;
  const std::size_t row_bytes = encoded ? encoded_row : raw_row;
  const std::size_t weights_bytes =
      weights ? num_rows * setup_.layout.weights_per_row() * sizeof(float) : 0;
  if (!pool.back(buffer, setup_.layout.rows(), rows ? num_rows * row_bytes : 0) ||
      !pool.back(buffer, setup_.layout.weights(), weights_bytes)) {
    return {Code::kCapacity,
            fmt::format("combine: no memory to publish {} bytes of expert rows",
                        num_rows * row_bytes + weights_bytes),
            setup_.rank};
  }
  pool.mark_used(buffer);
  pool.mark_published(buffer, mine.number);
  std::byte* data = pool.data(buffer);
  if (rows) {
    mine.encoded = encoded;
    mine.published.pitch_bytes = static_cast<std::int64_t>(row_bytes);
    mine.published.rows_offset = pool.offset_of(data + setup_.layout.rows());
    copy_rows_in(data + setup_.layout.rows(), mine);
  }
  if (weights) {
    std::memcpy(data + setup_.layout.weights(), args_.row_weights, weights_bytes);
    mine.published.weights_offset = pool.offset_of(data + setup_.layout.weights());
  }
  return {};
}

// Received rows only: gaps and padding are never read. Where the slots are not known yet, all rows.
void Combine::copy_rows_in(std::byte* to, const Record& mine) {
  const Rows& from = args_.expert_rows;
  const Route& route = *route_;
  const std::int64_t row_bytes = mine.published.pitch_bytes;
  const std::int64_t all_rows =
      unplaced_ ? from.num_rows * exchange_.group->size() : route.total_rows;  // without padding
  const Stores stores = exchange_.stores.stores(all_rows * setup_.layout.row_bytes());
  const auto copy_one = [&](std::int64_t row) {
    const std::byte* raw = static_cast<const std::byte*>(from.data) + row * pitch_of(from);
    std::byte* copied = to + row * row_bytes;
    if (!mine.encoded) return copy_row(copied, raw, row_bytes, stores);
    setup_.combine_wire.encode(
        {.row = raw, .row_type = from.dtype, .hidden = from.hidden, .out = copied});
  };
  const auto copy = [&](std::int64_t first, std::int64_t count) {
    exchange_.workers->run(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = first + begin; row < first + end; ++row) copy_one(row);
      if (stores == Stores::kStreaming) stores_fence();
    });
    exchange_.stats.bytes_copied += count * row_bytes;
  };
  if (setup_.rank_major() || unplaced_) return copy(0, from.num_rows);
  for (std::size_t expert = 0; expert + 1 < route.received.expert_offsets.size(); ++expert) {
    copy(route.received.expert_offsets[expert], route.received.tokens_per_expert[expert]);
  }
}

}  // namespace ferry::internal
