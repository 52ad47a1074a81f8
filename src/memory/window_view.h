// WindowView: the segment of an exchange as the objects that lie in it. A value; used by the
// exchange and by what it does between nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/segment.h"
#include "memory/window_layout.h"
#include "topology/nodes.h"

namespace ferry::internal {

struct WindowView {
  std::shared_ptr<Segment> segment;
  const WindowLayout* layout;
  const Nodes* nodes;

  std::byte* at(std::size_t offset) const noexcept { return segment->data() + offset; }
  ControlWords& control(int rank) const noexcept {
    return *reinterpret_cast<ControlWords*>(at(layout->control(rank)));
  }
  Record& record(int rank, std::uint64_t number) const noexcept {
    return *reinterpret_cast<Record*>(at(layout->record(rank, number)));
  }
  std::int32_t* count_row(int rank, std::uint64_t number) const noexcept {
    return reinterpret_cast<std::int32_t*>(at(layout->count_row(rank, number)));
  }
  // Of a rank of this node.
  std::byte* window(int rank) const noexcept { return at(layout->window(nodes->position(rank))); }
};

}  // namespace ferry::internal
