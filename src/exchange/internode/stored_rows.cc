// Rows of a served rank: from a message into their slots at the ranks of this node, their scales,
// sources and weights beside them. For rows of its own node send_rows.cc and row_metadata.cc do so.
// Called by forwarder.cc.
#include <cstring>

#include "exchange/internode/forwarder.h"
#include "kernels/kernels.h"

namespace ferry::internal {

namespace {

void store_metadata(const WindowLayout& layout, std::byte* buffer, const Destination& to) {
  const std::size_t weights = layout.weights_per_row() * sizeof(float);
  const std::size_t ids = layout.ids_per_row() * sizeof(std::int32_t);
  std::memcpy(buffer + layout.sources() + to.row * sizeof to.source, to.source, sizeof to.source);
  std::memcpy(buffer + layout.weights() + to.row * weights, to.weights.data(), weights);
  std::memcpy(buffer + layout.topk_ids() + to.row * ids, to.ids.data(), ids);
}

}  // namespace

void Forwarder::store_rows(std::uint64_t number, std::span<const std::byte> body) const {
  RowUnit unit;
  while (const std::size_t bytes = read_row_unit(layout_, body, unit)) {
    if (!store_unit(number, unit)) break;
    body = body.subspan(bytes);
  }
  stores_fence();
}

// Destinations of other nodes were passed on. False: what is there is no unit of this exchange.
bool Forwarder::store_unit(std::uint64_t number, const RowUnit& unit) const {
  void* rows[RowUnit::kMostDestinations];
  int count = 0;
  for (int i = 0; i < unit.num_destinations; ++i) {
    Destination to;
    if (!read_destination(layout_, num_ranks(), unit, i, to)) return false;
    if (!view_.here(to.rank)) continue;
    std::byte* buffer =
        view_.window(to.rank) + layout_.buffer(view_.record(to.rank, number).posted.buffer);
    rows[count++] = buffer + layout_.rows() + to.row * layout_.row_bytes();
    store_metadata(layout_, buffer, to);
    if (layout_.scale_bytes() > 0)
      layout_.put_scales(buffer, layout_.scale_strides(to.section_rows), to.row,
                         unit.scales.data());
  }
  copy_row_to_many(rows, count, unit.row.data(), layout_.row_bytes(),
                   (unit.flags & RowUnit::kStreaming) != 0 ? Stores::kStreaming : Stores::kCached);
  return true;
}

}  // namespace ferry::internal
