#include "exchange/setup/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "exchange/setup/record.h"

namespace ferry::internal {

namespace {

// A number that no other exchange of this process has: a handle is refused by any exchange but the
// one that made it.
std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::vector<std::int32_t> index_replicas(const ExchangeConfig& config) {
  const std::vector<std::vector<int>>& instances = config.replicas.instances;
  std::vector<std::int32_t> logical(instances.empty() ? 0 : config.num_experts);
  for (std::size_t id = 0; id < instances.size(); ++id) {
    for (const int expert : instances[id]) logical[expert] = static_cast<std::int32_t>(id);
  }
  return logical;
}

std::vector<int> nodes_of_ranks(const Topology& topology) {
  std::vector<int> nodes;
  for (int rank = 0; rank < topology.num_ranks(); ++rank) nodes.push_back(topology.node_of(rank));
  return nodes;
}

void check_tp_groups(const ExchangeConfig& config, const Topology& topology) {
  for (int rank = 0; rank < topology.num_ranks(); ++rank) {
    const int first = rank - rank % config.tp_size;
    if (topology.node_of(rank) == topology.node_of(first)) continue;
    throw Error(
        Code::kInvalidArgument,
        fmt::format("tp_size is {}: ranks {} and {} share rows and must be of one node, "
                    "they are of nodes {} and {}",
                    config.tp_size, first, rank, topology.node_of(first), topology.node_of(rank)));
  }
}

}  // namespace

bool shares_sums(const ExchangeConfig& config, const ExpertMap& map) noexcept {
  const std::int64_t row_size = placement_rules(config).count_row_size(map);
  return config.tp_size == 1 && map.num_members() * row_size >= kSharedSumsFrom;
}

WindowShape window_shape(const ExchangeConfig& config, const ExpertMap& map,
                         const SegmentPlaces& places) {
  const WireFormat& wire = wire_format(config.wire);
  const bool as_they_are = wire.encode == nullptr;
  return {.num_ranks = static_cast<int>(places.windows.size()),
          .num_sources = num_token_ranks(config, map.num_members()) * config.tp_size,
          .node_ranks = places.node_ranks,
          .num_row_lists = places.num_row_lists,
          .num_windows = places.num_windows,
          .num_columns = map.num_columns(),
          .max_local = map.max_num_local(),
          .row_bytes = as_they_are ? config.hidden * element_bytes(config.dtype)
                                   : wire.encoded_bytes(config.hidden, config.dtype),
          .scale_bytes = static_cast<std::size_t>(as_they_are ? config.scale_bytes
                                                              : wire.num_scales(config.hidden) * 4),
          .flags_bytes = sizeof(ControlFlags),
          .record_bytes = sizeof(Record),
          .shared_sums = shares_sums(config, map)};
}

Setup::Setup(const ExchangeConfig& complete, const Topology& topology, int mine,
             AlgorithmChoice chosen)
    : config(complete),
      num_ranks(topology.num_ranks()),
      rank(mine),
      id(next_id()),
      wire(wire_format(config.wire)),
      combine_wire(wire_format(config.combine_wire)),
      choice(std::move(chosen)),
      everybody(std::make_shared<ActiveSet>(config, num_ranks, rank, std::span<const int>())),
      places(std::make_shared<SegmentPlaces>(config, everybody->map, nodes_of_ranks(topology))),
      layout(config, window_shape(config, everybody->map, *places)),
      logical(index_replicas(config)) {
  check_tp_groups(config, topology);
  FERRY_CHECK(std::ssize(everybody->ranks), ==, num_ranks);
  FERRY_CHECK(everybody->contains_me(), ==, true);
  FERRY_CHECK(receives(), ==, num_local_experts() > 0);
}

std::shared_ptr<const ActiveSet> Setup::active_set(std::span<const int> chosen) const {
  return chosen.empty() ? everybody : std::make_shared<ActiveSet>(config, num_ranks, rank, chosen);
}

}  // namespace ferry::internal
