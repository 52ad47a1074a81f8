// Part of Dispatch: hands over the received rows, as views of the receive buffer, or as copies if
// too many views are alive.
#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "exchange/dispatch/dispatch.h"

namespace ferry::internal {

Status Dispatch::show(Received& received) {
  const int views = exchange_.pool->num_pinned();
  if (active().contains_me() && views > setup_.layout.live_buffers()) {
    return {Code::kCapacity,
            fmt::format("{} views of the window are alive, the limit is {}", views,
                        setup_.layout.live_buffers()),
            setup_.rank};
  }
  fill(received);
  shown_ = true;
  return {};
}

void Dispatch::hand_over(Received& received) {
  fill(received);
  if (!active().contains_me()) return;
  Pool& pool = *exchange_.pool;
  FERRY_CHECK(pin_.get(), !=, nullptr);
  pool.mark_used(buffer_);
  exchange_.stats.rows_received += route_->received.num_rows;
  pin_.reset();
  if (!shown_ && pool.num_pinned() > setup_.layout.live_buffers()) copy_out(received);
}

// A rank that is left out gets 0 rows; their hidden size and type are those of the other ranks.
void Dispatch::fill(Received& received) const {
  received.hidden = setup_.config.hidden;
  received.dtype = setup_.wire.encode ? setup_.wire.element_type : setup_.config.dtype;
  received.handle = Handle(route_);
  if (!active().contains_me()) return;
  const WindowLayout& layout = setup_.layout;
  std::byte* const buffer = exchange_.pool->data(buffer_);
  // Without a window there are no rows, and any address serves their arrays.
  const auto at = [&](std::size_t offset) { return buffer + (setup_.receives() ? offset : 0); };
  const std::size_t rows = route_->received.num_rows;
  FERRY_CHECK(buffer_, >=, 0);
  FERRY_CHECK(route_->received.num_rows, <=, setup_.max_rows());
  received.data = at(layout.rows());
  received.num_rows = route_->received.num_rows;
  received.room_rows = setup_.max_rows();
  received.sources = {reinterpret_cast<const std::int32_t*>(at(layout.sources())), rows * 3};
  if (weights_) {
    received.weights = {reinterpret_cast<const float*>(at(layout.weights())),
                        rows * layout.weights_per_row()};
  }
  received.topk_ids = {reinterpret_cast<const std::int32_t*>(at(layout.topk_ids())),
                       rows * layout.ids_per_row()};
  if (layout.scale_bytes() > 0) {
    received.scales = layout.scale_strides(route_->section_rows[active().member]);
    received.scales.data = at(layout.scales());
  }
  received.pin = pin_;
}

// Copies the received rows, their metadata and scales to memory outside the window, so that the
// receive buffer is free again. Used when too many views are alive.
void Dispatch::copy_out(Received& received) const {
  const WindowLayout& layout = setup_.layout;
  const std::int64_t stride = received.scales.section_stride;
  const std::size_t scales_bytes =
      stride ? setup_.num_local_experts() * stride : layout.section_scale_bytes(received.num_rows);
  constexpr int kParts = 5;
  const std::size_t parts[kParts] = {received.num_rows * layout.row_bytes(),
                                     received.sources.size_bytes(), received.weights.size_bytes(),
                                     received.topk_ids.size_bytes(), scales_bytes};
  const void* const from[kParts] = {received.data, received.sources.data(), received.weights.data(),
                                    received.topk_ids.data(), received.scales.data};
  std::size_t offsets[kParts], total = 0;
  for (int i = 0; i < kParts; ++i) {
    offsets[i] = total;
    total += (parts[i] + 63) / 64 * 64;
  }
  std::shared_ptr<std::byte[]> memory(new std::byte[total]);
  for (int i = 0; i < kParts; ++i) {
    if (parts[i] > 0) std::memcpy(memory.get() + offsets[i], from[i], parts[i]);
  }
  received.data = memory.get();
  received.room_rows = received.num_rows;
  received.sources = {reinterpret_cast<const std::int32_t*>(memory.get() + offsets[1]),
                      received.sources.size()};
  received.weights = {reinterpret_cast<const float*>(memory.get() + offsets[2]),
                      received.weights.size()};
  received.topk_ids = {reinterpret_cast<const std::int32_t*>(memory.get() + offsets[3]),
                       received.topk_ids.size()};
  if (received.scales.data) received.scales.data = memory.get() + offsets[4];
  received.pin = std::move(memory);
  exchange_.stats.bytes_copied += parts[0];
}

}  // namespace ferry::internal
