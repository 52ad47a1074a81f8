// A client's rows: from a message to their slots at the ranks of this node, their scales, sources
// and weights beside them. What send_rows.cc does for its own node. Everything in a message is
// looked at before it is believed.
#include <cstring>

#include "base/round_up.h"
#include "exchange/internode/forwarder.h"

namespace ferry::internal {

std::size_t unit_row_bytes(const WindowLayout& layout) noexcept {
  return sizeof(UnitRow) + 4 * (layout.weights_per_row() + layout.ids_per_row());
}

std::size_t unit_row_at(int num_rows, const WindowLayout& layout) noexcept {
  return round_up(sizeof(UnitHead) + num_rows * unit_row_bytes(layout), kUnitAlign);
}

std::size_t unit_size(int num_rows, const WindowLayout& layout) noexcept {
  return unit_row_at(num_rows, layout) +
         round_up(layout.row_bytes() + layout.scale_bytes(), kUnitAlign);
}

std::size_t whole_unit(std::span<const std::byte> bytes, const WindowLayout& layout,
                       UnitHead& head) noexcept {
  if (bytes.size() < sizeof head) return 0;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.num_rows < 0 || head.num_rows > Subtrees::kMostItems) return 0;
  const std::size_t size = unit_size(head.num_rows, layout);
  return bytes.size() < size ? 0 : size;
}

void Forwarder::store_rows(std::uint64_t number, std::span<const std::byte> body) const {
  while (!body.empty()) {
    const std::size_t bytes = store_unit(number, body);
    if (bytes == 0) break;
    body = body.subspan(bytes);
  }
  stores_fence();
}

// Bytes of the unit; 0: what is there is none. Rows of other nodes were passed on.
std::size_t Forwarder::store_unit(std::uint64_t number, std::span<const std::byte> unit) const {
  const WindowLayout& layout = *view_.layout;
  UnitHead head;
  const std::size_t bytes = whole_unit(unit, layout, head);
  if (bytes == 0) return 0;
  const std::byte* row = unit.data() + unit_row_at(head.num_rows, layout);
  void* rows[Subtrees::kMostItems];
  int count = 0;
  for (int i = 0; i < head.num_rows; ++i) {
    const std::byte* at = unit.data() + sizeof head + i * unit_row_bytes(layout);
    UnitRow to;
    std::memcpy(&to, at, sizeof to);
    const bool known =
        to.rank >= 0 && to.rank < view_.num_ranks() && to.row >= 0 && to.row < layout.max_rows();
    if (!known) return 0;
    if (!view_.here(to.rank)) continue;
    std::byte* buffer =
        view_.window(to.rank) + layout.buffer(view_.record(to.rank, number).posted.buffer);
    rows[count++] = buffer + layout.rows() + to.row * layout.row_bytes();
    store_metadata(buffer, to, at + sizeof to);
    if (layout.scale_bytes() > 0)
      layout.put_scales(buffer, layout.scale_strides(to.section_rows), to.row,
                        row + layout.row_bytes());
  }
  copy_row_to_many(rows, count, row, layout.row_bytes(),
                   (head.flags & UnitHead::kStreaming) != 0 ? Stores::kStreaming : Stores::kCached);
  return bytes;
}

void Forwarder::store_metadata(std::byte* buffer, const UnitRow& to, const std::byte* rest) const {
  const WindowLayout& layout = *view_.layout;
  const std::size_t weights = layout.weights_per_row() * sizeof(float);
  const std::size_t ids = layout.ids_per_row() * sizeof(std::int32_t);
  std::memcpy(buffer + layout.sources() + to.row * sizeof to.source, to.source, sizeof to.source);
  std::memcpy(buffer + layout.weights() + to.row * weights, rest, weights);
  std::memcpy(buffer + layout.topk_ids() + to.row * ids, rest + weights, ids);
}

}  // namespace ferry::internal
