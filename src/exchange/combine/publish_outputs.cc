#include "exchange/combine/publish_outputs.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "base/check.h"

namespace ferry::internal {

namespace {

std::size_t bytes_of_weights(const CombineCall& call) {
  return call.args.expert_rows.num_rows * call.setup.layout.weights_per_row() * sizeof(float);
}

Terms terms_of(const CombineCall& call) {
  const Rows& rows = call.args.expert_rows;
  return {.kind = OperationKind::kCombine,
          .weights = rows.num_rows == 0      ? Agreed::kAny
                     : call.args.row_weights ? Agreed::kYes
                                             : Agreed::kNo,
          .row_type = rows.dtype,
          .hidden = static_cast<std::uint32_t>(rows.hidden),
          .route = call.slots_are_known ? call.route->number : 0};
}

// Copies the outputs to `to`. If the slots are known, it copies only rows that were received,
// because gaps and padding are never read; otherwise it copies all rows.
void copy_rows_in(const CombineCall& call, const Record& mine, std::byte* to) {
  const Rows& from = call.args.expert_rows;
  const Route& route = *call.route;
  ExchangeParts& exchange = call.exchange;
  const std::int64_t row_bytes = mine.published.pitch_bytes;
  const std::int64_t all_rows = call.slots_are_known ? route.total_rows  // without padding
                                                     : from.num_rows * exchange.group->size();
  const Stores stores = exchange.stores.stores(all_rows * call.setup.layout.row_bytes());
  const auto copy_one = [&](std::int64_t row) {
    const std::byte* raw = static_cast<const std::byte*>(from.data) + row * pitch_of(from);
    std::byte* copied = to + row * row_bytes;
    if (!mine.encoded) return copy_row(copied, raw, row_bytes, stores);
    call.setup.combine_wire.encode(
        {.row = raw, .row_type = from.dtype, .hidden = from.hidden, .out = copied});
  };
  const auto copy = [&](std::int64_t first, std::int64_t count) {
    FERRY_CHECK(first + count, <=, from.num_rows);
    exchange.workers->run(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = first + begin; row < first + end; ++row) copy_one(row);
      if (stores == Stores::kStreaming) stores_fence();
    });
    exchange.stats.bytes_copied += count * row_bytes;
  };
  if (call.setup.rank_major() || !call.slots_are_known) return copy(0, from.num_rows);
  for (std::size_t expert = 0; expert + 1 < route.received.expert_offsets.size(); ++expert) {
    copy(route.received.expert_offsets[expert], route.received.tokens_per_expert[expert]);
  }
}

struct Staged {
  bool rows, weights;
};

// Copies outputs into a free buffer. There is always one (docs/protocol.md): a combine must not
// wait for one before it is announced. Rows are encoded in combine_wire if that makes them smaller.
// With tensor parallelism they are not, since they are added to those of other ranks before they
// are encoded.
Status stage(const CombineCall& call, Staged staged, Record& mine) {
  Pool& pool = *call.exchange.pool;
  const WindowLayout& layout = call.setup.layout;
  const int buffer = pool.free_buffer(call.exchange.protocol.min_read_through()).value();
  const std::int64_t num_rows = call.args.expert_rows.num_rows;
  const std::size_t raw_row = dense_pitch(call.args.expert_rows);
  const std::size_t encoded_row = call.row_format().wire_bytes();
  const bool encoded = staged.rows && encoded_row < raw_row && call.active().tp_size == 1;
  const std::size_t row_bytes = encoded ? encoded_row : raw_row;
  const std::size_t weights_bytes = staged.weights ? bytes_of_weights(call) : 0;
  if (!pool.back(buffer, layout.rows(), staged.rows ? num_rows * row_bytes : 0) ||
      !pool.back(buffer, layout.weights(), weights_bytes)) {
    return {Code::kCapacity,
            fmt::format("combine: no memory to publish {} bytes of expert rows",
                        num_rows * row_bytes + weights_bytes),
            call.setup.rank};
  }
  pool.mark_used(buffer);
  pool.mark_published(buffer, mine.number);
  FERRY_CHECK(pool.published(buffer), ==, mine.number);
  std::byte* data = pool.data(buffer);
  if (staged.rows) {
    mine.encoded = encoded;
    mine.published.pitch_bytes = static_cast<std::int64_t>(row_bytes);
    mine.published.rows_offset = pool.offset_of(data + layout.rows());
    copy_rows_in(call, mine, data + layout.rows());
  }
  if (staged.weights) {
    std::memcpy(data + layout.weights(), call.args.row_weights, weights_bytes);
    mine.published.weights_offset = pool.offset_of(data + layout.weights());
  }
  return {};
}

}  // namespace

Status publish_outputs(const CombineCall& call) {
  Pool& pool = *call.exchange.pool;
  const CombineArgs& args = call.args;
  const std::size_t rows_bytes = extent_of(args.expert_rows);
  const std::size_t weights_bytes = args.row_weights ? bytes_of_weights(call) : 0;
  Record& mine =
      call.exchange.protocol.new_record(call.number(), terms_of(call), args.digests.mine);
  FERRY_CHECK(mine.number, ==, call.number());
  mine.num_rows = static_cast<std::int32_t>(args.expert_rows.num_rows);
  mine.published = {
      .rows_offset = 0, .pitch_bytes = pitch_of(args.expert_rows), .weights_offset = 0};
  // If `data` lies in a pinned buffer and may be read there, marks the buffer as published and
  // returns true.
  const auto in_place = [&](const void* data, std::size_t bytes, auto& offset) {
    const std::optional<int> buffer = args.in_place ? pool.find(data, bytes).buffer : std::nullopt;
    if (!buffer) return false;
    offset = pool.offset_of(data);
    pool.mark_published(*buffer, call.number());
    return true;
  };
  const bool rows_lie = in_place(args.expert_rows.data, rows_bytes, mine.published.rows_offset);
  const bool weights_lie = in_place(args.row_weights, weights_bytes, mine.published.weights_offset);
  const Staged staged{.rows = rows_bytes > 0 && !rows_lie,
                      .weights = weights_bytes > 0 && !weights_lie};
  return staged.rows || staged.weights ? stage(call, staged, mine) : Status{};
}

}  // namespace ferry::internal
