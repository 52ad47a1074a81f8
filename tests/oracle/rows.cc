// The oracle's order of rows: which entries become rows of a rank, and at which places.
#include "oracle/rows.h"

#include <algorithm>
#include <utility>

#include "base/round_up.h"

namespace ferry::internal {
namespace {

// An entry that goes to one of the rank's experts.
struct Arrival {
  int local;  // the expert
  int turn;   // of the source's tp_rank: 0 for the rank's own
  ReferenceRow row;
};

std::int64_t num_tokens(const ReferenceRouting& routing, int rank) {
  return static_cast<std::int64_t>(routing.entries[rank].size()) / routing.entries_per_token;
}

void add_arrivals(const ReferenceRouting& routing, int member, int turn, ReferenceRow row,
                  std::vector<Arrival>& arrivals) {
  const int rank = routing.members[row.member].ranks[row.tp_rank];
  for (row.token = 0; row.token < num_tokens(routing, rank); ++row.token) {
    for (row.k = 0; row.k < routing.entries_per_token; ++row.k) {
      const ReferenceEntry& entry = routing.entry(rank, row.token, row.k);
      if (entry.member == member) arrivals.push_back({entry.local, turn, row});
    }
  }
}

// By source in the rank's order of sources, then by token and k.
std::vector<Arrival> arrivals_at(const ReferenceRouting& routing, int member, int tp_rank) {
  const auto tp_size = static_cast<int>(routing.members[member].ranks.size());
  const auto num_members = static_cast<int>(routing.members.size());
  std::vector<Arrival> arrivals;
  for (int turn = 0; turn < tp_size; ++turn) {
    for (int source = 0; source < num_members; ++source)
      add_arrivals(routing, member, turn, {source, (tp_rank + turn) % tp_size}, arrivals);
  }
  return arrivals;
}

// One row for each token with at least one entry here.
void place_rank_major(const ReferenceRouting& routing, const std::vector<Arrival>& arrivals,
                      ReferenceRows& placed) {
  const std::size_t num_members = routing.members.size();
  placed.rows_per_source.resize(routing.members[0].ranks.size() * num_members);
  for (const auto& [local, turn, row] : arrivals) {
    const ReferenceRow last = placed.rows.empty() ? ReferenceRow{} : placed.rows.back();
    if (row.member == last.member && row.tp_rank == last.tp_rank && row.token == last.token)
      continue;
    placed.rows.push_back(row);
    ++placed.rows_per_source[turn * num_members + row.member];
  }
}

void place_by_expert(const ExchangeConfig& config, int num_local_experts,
                     std::int64_t expert_capacity, std::vector<Arrival> arrivals,
                     ReferenceRows& placed) {
  std::ranges::stable_sort(arrivals, {}, &Arrival::local);
  auto next = arrivals.begin();
  for (int expert = 0; expert < num_local_experts; ++expert) {
    const auto first = static_cast<std::int64_t>(placed.rows.size());
    placed.expert_offsets.push_back(first);
    for (; next != arrivals.end() && next->local == expert; ++next)
      placed.rows.push_back(next->row);
    const std::int64_t num_rows = static_cast<std::int64_t>(placed.rows.size()) - first;
    placed.rows.resize(first + (config.layout == Layout::kPadded
                                    ? expert_capacity
                                    : round_up(num_rows, config.expert_alignment)));
  }
  placed.expert_offsets.push_back(static_cast<std::int64_t>(placed.rows.size()));
}

}  // namespace

std::int64_t reference_expert_capacity(const ExchangeConfig& config, std::size_t num_ranks) {
  if (config.expert_capacity != 0) return config.expert_capacity;
  const auto sources = static_cast<std::int64_t>(
      config.token_ranks.empty() ? num_ranks : config.token_ranks.size() * config.tp_size);
  return std::max<std::int64_t>(1, config.max_tokens * sources);
}

ReferenceRows reference_rows(const ExchangeConfig& config, const ReferenceRouting& routing,
                             int member, int tp_rank) {
  const std::size_t num_members = routing.members.size();
  const auto& [ranks, num_local_experts] = routing.members[member];
  std::vector<Arrival> arrivals = arrivals_at(routing, member, tp_rank);
  ReferenceRows placed;
  placed.counts.resize(ranks.size() * num_local_experts * num_members);
  for (const auto& [local, turn, row] : arrivals)
    ++placed.counts[(static_cast<std::size_t>(turn) * num_local_experts + local) * num_members +
                    row.member];
  if (config.layout == Layout::kRankMajor) {
    place_rank_major(routing, arrivals, placed);
  } else {
    place_by_expert(config, num_local_experts,
                    reference_expert_capacity(config, routing.entries.size()), std::move(arrivals),
                    placed);
  }
  return placed;
}

}  // namespace ferry::internal
