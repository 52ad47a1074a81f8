// Window memory for expert outputs, and the choice of stores: what dispatch and combine share about
// memory.
#include <fmt/format.h>

#include "exchange/state.h"

namespace ferry::internal {

namespace {

// Streaming stores pay once the rows written exceed the last-level caches by this much; in cache
// they cost 3 to 4 times ordinary ones (measured: `ferry bench --sweep`;
// docs/decisions/streaming_stores.md).
constexpr std::uint64_t kStreamingCaches = 2;

}  // namespace

Status ExchangeState::allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                                       OutputRows& outputs) {
  outputs.release();
  if (Status verdict = group_->verdict(); !verdict.ok()) return verdict;
  const std::int64_t element = static_cast<std::int64_t>(element_bytes(dtype));
  if (num_rows < 0 || num_rows > layout_.max_rows() || hidden < 1 || element == 0 ||
      hidden > config_.max_output_row_bytes / element) {
    return {Code::kInvalidArgument,
            fmt::format("allocate_outputs: [{}, {}] of {}, need 0 to {} rows of at most {} bytes "
                        "(max_output_row_bytes)",
                        num_rows, hidden, data_type_name(dtype), layout_.max_rows(),
                        config_.max_output_row_bytes),
            rank_};
  }
  const std::optional<int> buffer = pool_->free_buffer(min_read_through());
  if (!buffer || pool_->num_pinned() >= layout_.live_buffers()) {
    return {Code::kCapacity,
            fmt::format("allocate_outputs: {} views of the window are alive, the limit is {}",
                        pool_->num_pinned(), layout_.live_buffers()),
            rank_};
  }
  if (!pool_->back(*buffer, layout_.rows(), num_rows * hidden * element)) {
    return {Code::kCapacity,
            fmt::format("allocate_outputs: no memory for {} bytes", num_rows * hidden * element),
            rank_};
  }
  pool_->mark_used(*buffer);
  outputs.data = pool_->data(*buffer) + layout_.rows();
  outputs.num_rows = num_rows;
  outputs.hidden = hidden;
  outputs.dtype = dtype;
  outputs.pin = std::make_shared<Pin>(pool_, *buffer);
  return {};
}

Stores ExchangeState::stores_for(std::uint64_t bytes) const noexcept {
  return bytes > kStreamingCaches * cache_bytes_ ? Stores::kStreaming : Stores::kCached;
}

}  // namespace ferry::internal
