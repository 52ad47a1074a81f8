// WindowView: finds the objects that lie in the segment of an exchange. It is a value, copied to
// every part of the exchange that reads or writes the segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "exchange/setup/record.h"
#include "memory/segment.h"
#include "memory/window_layout.h"
#include "routing/roles.h"

namespace ferry::internal {

struct WindowView {
  std::shared_ptr<Segment> segment;
  const WindowLayout* layout;
  std::span<const int> local_ranks;  // [ranks] the local_rank; -1: of another node
  std::shared_ptr<const SegmentPlaces> places;

  std::byte* at(std::size_t offset) const noexcept { return segment->data() + offset; }
  ControlFlags& control(int rank) const noexcept {
    return *reinterpret_cast<ControlFlags*>(at(layout->control(rank)));
  }
  Record& record(int rank, std::uint64_t number) const noexcept {
    return *reinterpret_cast<Record*>(at(layout->record(rank, number)));
  }
  std::int32_t* count_row(int rank, std::uint64_t number) const noexcept {
    return reinterpret_cast<std::int32_t*>(at(layout->count_row(rank, number)));
  }
  // Sums of count rows, for a `rank` of this node: the sums of the rows before its own, and the
  // sums of all rows.
  std::int32_t* sums_before(int rank) const noexcept {
    return reinterpret_cast<std::int32_t*>(at(layout->sums_before(local_ranks[rank])));
  }
  std::int32_t* total_sums(int rank) const noexcept {
    return reinterpret_cast<std::int32_t*>(at(layout->total_sums(local_ranks[rank])));
  }
  // The row list of a rank of this node that dispatches tokens.
  std::byte* row_list(int rank, std::uint64_t number) const noexcept {
    return at(layout->row_list(places->row_lists[rank], number));
  }
  int num_ranks() const noexcept { return static_cast<int>(local_ranks.size()); }
  bool here(int rank) const noexcept { return local_ranks[rank] >= 0; }
  bool has_window(int rank) const noexcept { return here(rank) && places->receives(rank); }
  // Call only where has_window(rank).
  std::byte* window(int rank) const noexcept { return at(layout->window(places->windows[rank])); }
};

}  // namespace ferry::internal
