// Setup: the agreed configuration of an exchange on one rank, and the values that follow from it.
// It is constant from the creation of the exchange to its end, and all of src/exchange reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/round_up.h"
#include "ferry/exchange.h"
#include "ferry/topology.h"
#include "kernels/kernels.h"
#include "kernels/wire_formats.h"
#include "memory/window_layout.h"
#include "routing/active_set.h"
#include "routing/placement.h"
#include "routing/roles.h"
#include "routing/route.h"

namespace ferry::internal {

inline PlacementRules placement_rules(const ExchangeConfig& config) noexcept {
  return {config.layout, config.expert_alignment, config.expert_capacity};
}

// If a count matrix has this many elements or more, one more round of flags takes less time than
// letting every rank read the whole matrix (docs/decisions/count_sums.md).
inline constexpr std::int64_t kSharedSumsFrom = 32768;

// Whether the ranks of a node sum the columns of a dispatch's count matrix together
// (place_rows.cc). The result is the same on every rank.
bool shares_sums(const ExchangeConfig& config, const ExpertMap& map) noexcept;

// `config` must be complete (complete_config).
WindowShape window_shape(const ExchangeConfig& config, const ExpertMap& map,
                         const SegmentPlaces& places);

struct Setup {
  // Throws Error(kInvalidArgument) when the configuration does not fit the ranks. `config` is
  // complete.
  Setup(const ExchangeConfig& config, const Topology& topology, int rank, AlgorithmChoice choice);

  // The active set of the ranks in `chosen`; empty: all ranks. Throws Error(kInvalidArgument) if
  // `chosen` cannot be a set of active ranks.
  std::shared_ptr<const ActiveSet> active_set(std::span<const int> chosen) const;

  bool rank_major() const noexcept { return config.layout == Layout::kRankMajor; }
  bool everywhere() const noexcept { return choice.algorithm == Algorithm::kAllgather; }
  int num_local_experts() const noexcept { return everybody->map.num_local(everybody->member); }
  int num_sections() const noexcept {
    return config.layout == Layout::kPadded ? num_local_experts() : 1;
  }
  PlacementRules rules() const noexcept { return placement_rules(config); }
  // Whether this rank dispatches tokens, and whether it owns experts.
  bool sends() const noexcept { return places->sends(rank); }
  bool receives() const noexcept { return places->receives(rank); }
  // Rows that a receive buffer of this rank holds at most, and those in each section that are
  // backed with memory at the beginning.
  std::int64_t max_rows() const noexcept { return receives() ? layout.max_rows() : 0; }
  std::int64_t expected_section_rows() const noexcept {
    return receives() ? layout.expected_section_rows() : 0;
  }
  // The number of experts that top-k ids can name. With replicas these are the logical experts.
  int num_ids() const noexcept {
    return config.replicas.instances.empty() ? config.num_experts
                                             : static_cast<int>(config.replicas.instances.size());
  }
  // The row of `entry` at the tensor-parallel rank `tp_rank` of its owner.
  std::int64_t row_at(const Route& route, std::int64_t entry, int tp_rank) const noexcept {
    const RowRef ref = route.refs[entry];
    if (route.shifts.empty()) return ref.row;
    const std::size_t columns = route.shifts.size() / route.active->tp_size;
    const std::int32_t column = rank_major() ? ref.member : route.columns[entry];
    return ref.row + route.shifts[tp_rank * columns + column];
  }
  // The offset in a worker's scratch memory of the scales of the row that it encodes: they lie
  // behind the row, and begin on a cache line.
  std::size_t scales_in_scratch() const noexcept {
    return round_up(layout.row_bytes(), kLineBytes);
  }
  std::size_t scratch_bytes() const noexcept {
    return wire.encode ? scales_in_scratch() + layout.scale_bytes() : 0;
  }

  ExchangeConfig config;
  int num_ranks;
  int rank;
  std::uint64_t id;  // no two exchanges of this process have the same
  const WireFormat& wire;
  const WireFormat& combine_wire;
  AlgorithmChoice choice;
  std::shared_ptr<const ActiveSet> everybody;
  std::shared_ptr<const SegmentPlaces> places;
  WindowLayout layout;
  std::vector<std::int32_t> logical;  // [E] the logical expert of each replica; [0] without any
};

// Bytes from the start of one row to the next: in an array without gaps, and in the caller's array.
inline std::int64_t dense_pitch(const Rows& rows) noexcept {
  return rows.hidden * static_cast<std::int64_t>(element_bytes(rows.dtype));
}
inline std::int64_t pitch_of(const Rows& rows) noexcept {
  return rows.pitch_bytes ? rows.pitch_bytes : dense_pitch(rows);
}

// Bytes from the start of the first row to the end of the last one.
inline std::size_t extent_of(const Rows& rows) noexcept {
  return rows.num_rows ? (rows.num_rows - 1) * pitch_of(rows) + dense_pitch(rows) : 0;
}

}  // namespace ferry::internal
