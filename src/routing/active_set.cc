#include "routing/active_set.h"

#include <fmt/format.h>

#include <numeric>

#include "ferry/status.h"

namespace ferry::internal {

namespace {

// Members of a domain, as ranks of the domain.
std::vector<int> domain_members(const ExchangeConfig& config, int num_ranks,
                                std::span<const int> active) {
  if (num_ranks % config.tp_size != 0) {
    throw Error(Code::kInvalidArgument, fmt::format("{} ranks are not a multiple of tp_size {}",
                                                    num_ranks, config.tp_size));
  }
  std::vector<int> members(active.begin(), active.end());
  if (active.empty()) {
    members.resize(num_ranks / config.tp_size);
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  if (config.tp_size > 1) {
    throw Error(Code::kInvalidArgument,
                fmt::format("active_ranks names {} ranks, with tp_size {} all take part",
                            active.size(), config.tp_size));
  }
  std::vector<bool> seen(num_ranks);
  for (std::size_t i = 0; i < active.size(); ++i) {
    const int rank = active[i];
    if (rank < 0 || rank >= num_ranks || seen[rank]) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("active_ranks[{}] is {}, need distinct ranks in [0, {})", i, rank,
                              num_ranks));
    }
    seen[rank] = true;
  }
  return members;
}

// FNV-1a.
std::uint32_t digest_of(std::span<const int> ranks) {
  std::uint32_t hash = 2166136261u;
  for (const int rank : ranks) hash = (hash ^ static_cast<std::uint32_t>(rank)) * 16777619u;
  return hash;
}

}  // namespace

ActiveSet::ActiveSet(const ExchangeConfig& config, const Nodes& nodes, int rank,
                     std::span<const int> active)
    : chosen(active.begin(), active.end()),
      num_members(0),
      num_positions(config.tp_size),
      member(-1),
      position(rank % config.tp_size),
      waited(nodes.num_ranks()),
      map(config, nodes.num_ranks() / config.tp_size,
          domain_members(config, nodes.num_ranks(), active)),
      digest(digest_of(active)) {
  const std::vector<int> members = domain_members(config, nodes.num_ranks(), active);
  num_members = static_cast<int>(members.size());
  for (int p = 0; p < num_positions; ++p) {
    for (int m = 0; m < num_members; ++m) {
      ranks.push_back(members[m] * num_positions + p);
      waited[ranks.back()] = true;
      if (ranks.back() == rank) member = m;
    }
  }
  if (!nodes.one()) find_mates(nodes, rank);
}

// Positions are counted among those that take part; a rank that does not keeps its own.
void ActiveSet::find_mates(const Nodes& nodes, int rank) {
  std::vector<std::vector<int>> parts(nodes.count());
  std::vector<int> place(nodes.num_ranks());
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    std::vector<int>& part = parts[nodes.node_of(peer)];
    place[peer] = waited[peer] ? static_cast<int>(part.size()) : nodes.position(peer);
    if (waited[peer]) part.push_back(peer);
  }
  for (int node = 0; node < nodes.count(); ++node)
    mates.push_back(node == nodes.mine() ? -1 : mate_at(parts[node], place[rank]));
  for (int peer = 0; peer < nodes.num_ranks(); ++peer) {
    via.push_back(nodes.here(peer) ? peer : mate_at(parts[nodes.mine()], place[peer]));
    clients.push_back(waited[peer] && !nodes.here(peer) && via[peer] == rank);
  }
}

}  // namespace ferry::internal
