// What a dispatch hands over: views of the receive buffer, or copies when too many views are alive.
#include <cstring>

#include "exchange/state.h"

namespace ferry::internal {

void ExchangeState::fill_received(const InFlight& operation, Received& received) const {
  const std::byte* buffer = pool_->data(operation.buffer);
  const std::size_t rows = operation.route->num_rows;
  received.data = pool_->data(operation.buffer) + layout_.rows();
  received.num_rows = operation.route->num_rows;
  received.hidden = config_.hidden;
  received.dtype = wire_.encode ? wire_.element_type : config_.dtype;
  received.sources = {reinterpret_cast<const std::int32_t*>(buffer + layout_.sources()), rows * 3};
  if (operation.weights) {
    received.weights = {reinterpret_cast<const float*>(buffer + layout_.weights()),
                        rows * layout_.weights_per_row()};
  }
  received.topk_ids = {reinterpret_cast<const std::int32_t*>(buffer + layout_.topk_ids()),
                       rows * layout_.ids_per_row()};
  if (layout_.scale_bytes() > 0) {
    received.scales =
        layout_.scale_strides(operation.route->section_rows[operation.active->member]);
    received.scales.data = buffer + layout_.scales();
  }
  received.handle = Handle(operation.route);
  received.pin = operation.pin;
}

// Too many views are alive: this result moves to memory of its own, and its buffer is free again.
void ExchangeState::copy_out(Received& received) {
  const std::int64_t stride = received.scales.section_stride;
  const std::size_t scales_bytes =
      stride ? num_local_experts() * stride : layout_.section_scale_bytes(received.num_rows);
  constexpr int kParts = 5;
  const std::size_t parts[kParts] = {received.num_rows * layout_.row_bytes(),
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
  received.sources = {reinterpret_cast<const std::int32_t*>(memory.get() + offsets[1]),
                      received.sources.size()};
  received.weights = {reinterpret_cast<const float*>(memory.get() + offsets[2]),
                      received.weights.size()};
  received.topk_ids = {reinterpret_cast<const std::int32_t*>(memory.get() + offsets[3]),
                       received.topk_ids.size()};
  if (received.scales.data) received.scales.data = memory.get() + offsets[4];
  received.pin = std::move(memory);
  stats_.bytes_copied += parts[0];
}

}  // namespace ferry::internal
