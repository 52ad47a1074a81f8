#include "routing/active_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ferry/status.h"

namespace ferry::internal {

namespace {

// The members of a domain, as ranks of the domain.
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
                fmt::format("active_ranks names {} ranks, but with tp_size {} all take part",
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

ActiveSet::ActiveSet(const ExchangeConfig& config, int num_ranks, int rank,
                     std::span<const int> active)
    : chosen(active.begin(), active.end()),
      num_members(0),
      tp_size(config.tp_size),
      member(-1),
      tp_rank(rank % config.tp_size),
      waited(num_ranks),
      map(config, num_ranks / config.tp_size, domain_members(config, num_ranks, active)),
      digest(digest_of(active)) {
  const std::vector<int> members = domain_members(config, num_ranks, active);
  num_members = static_cast<int>(members.size());
  for (int p = 0; p < tp_size; ++p) {
    for (int m = 0; m < num_members; ++m) {
      ranks.push_back(members[m] * tp_size + p);
      waited[ranks.back()] = true;
      if (ranks.back() == rank) member = m;
    }
  }
  check(num_ranks, rank);
}

// The order is that of index(), each rank is there once, and the map counts the same members.
void ActiveSet::check(int num_ranks, int rank) const {
  FERRY_CHECK(rank, >=, 0);
  FERRY_CHECK(rank, <, num_ranks);
  FERRY_CHECK(num_members, >, 0);
  FERRY_CHECK(map.num_members(), ==, num_members);
  FERRY_CHECK(std::ssize(ranks), ==, tp_size * num_members);
  FERRY_CHECK(std::ssize(waited), ==, num_ranks);
  FERRY_CHECK(std::ranges::count(waited, true), ==, std::ssize(ranks));
  if (!contains_me()) return;
  FERRY_CHECK(ranks[my_index()], ==, rank);
  FERRY_CHECK(tp_rank_from_mine(tp_size - 1), ==, (tp_rank + tp_size - 1) % tp_size);
}

}  // namespace ferry::internal
