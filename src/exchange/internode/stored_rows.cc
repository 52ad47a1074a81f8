#include "exchange/internode/stored_rows.h"

#include <cstring>

#include "exchange/internode/message_layout.h"
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

// Skips destinations on other nodes, which get the row by RowRelay. False: the unit does not fit
// this exchange.
bool store_unit(const WindowView& view, std::uint64_t number, const RowUnit& unit) {
  const WindowLayout& layout = *view.layout;
  void* rows[RowUnit::kMostDestinations];
  int count = 0;
  for (int i = 0; i < unit.num_destinations; ++i) {
    Destination to;
    if (!read_destination(layout, view.num_ranks(), unit, i, to)) return false;
    if (!view.here(to.rank)) continue;
    if (!view.has_window(to.rank)) return false;
    std::byte* buffer =
        view.window(to.rank) + layout.buffer(view.record(to.rank, number).posted.buffer);
    rows[count++] = buffer + layout.rows() + to.row * layout.row_bytes();
    store_metadata(layout, buffer, to);
    if (layout.scale_bytes() > 0)
      layout.put_scales(buffer, layout.scale_strides(to.section_rows), to.row, unit.scales.data());
  }
  copy_row_to_many(rows, count, unit.row.data(), layout.row_bytes(),
                   (unit.flags & RowUnit::kStreaming) != 0 ? Stores::kStreaming : Stores::kCached);
  return true;
}

}  // namespace

void store_rows(const WindowView& view, std::uint64_t number, std::span<const std::byte> units) {
  RowUnit unit;
  while (const std::size_t bytes = read_row_unit(*view.layout, units, unit)) {
    if (!store_unit(view, number, unit)) break;
    units = units.subspan(bytes);
  }
  stores_fence();
}

}  // namespace ferry::internal
