// The oracle's order of rows: which entries become rows of a rank, and where. Called by
// dispatch.cc and combine.cc; calls nothing.
#include "oracle/rows.h"

#include <utility>

#include "base/round_up.h"

namespace ferry::internal {
namespace {

// One rank's view: its own place, and all sources.
class Receiver {
 public:
  Receiver(const ReferenceRouting& routing, int member, int position)
      : routing_(routing), member_(member), position_(position) {
    for (int from = 0; from < num_positions(); ++from) {
      for (int source = 0; source < num_members(); ++source) find_rows(source, from);
    }
  }

  int num_positions() const { return static_cast<int>(routing_.members[member_].ranks.size()); }
  int num_members() const { return static_cast<int>(routing_.members.size()); }
  int num_local_experts() const { return routing_.members[member_].num_local_experts; }

  // The position whose rows come i-th.
  int position(int i) const { return (position_ + i) % num_positions(); }

  // One row for each entry that goes to `local` here, by token and k.
  const std::vector<ReferenceRow>& rows_of_expert(int source, int position, int local) const {
    return by_expert_[position * num_members() + source][local];
  }

  // One row for each token with at least one entry here.
  std::vector<ReferenceRow> rows_of_tokens(int source, int position) const {
    std::vector<ReferenceRow> rows;
    for (std::int64_t token = 0; token < num_tokens(source, position); ++token) {
      for (int k = 0; k < routing_.entries_per_token; ++k) {
        if (entry_of(source, position, token, k).member != member_) continue;
        rows.push_back({source, position, token, k});
        break;
      }
    }
    return rows;
  }

 private:
  // Those of one source, which by_expert_ has next.
  void find_rows(int source, int position) {
    std::vector<std::vector<ReferenceRow>> rows(num_local_experts());
    for (std::int64_t token = 0; token < num_tokens(source, position); ++token) {
      for (int k = 0; k < routing_.entries_per_token; ++k) {
        const ReferenceEntry& entry = entry_of(source, position, token, k);
        if (entry.member == member_) rows[entry.local].push_back({source, position, token, k});
      }
    }
    by_expert_.push_back(std::move(rows));
  }

  const ReferenceEntry& entry_of(int source, int position, std::int64_t token, int k) const {
    return routing_.entry(routing_.members[source].ranks[position], token, k);
  }
  std::int64_t num_tokens(int source, int position) const {
    return static_cast<std::int64_t>(
        routing_.entries[routing_.members[source].ranks[position]].size() /
        routing_.entries_per_token);
  }

  const ReferenceRouting& routing_;
  const int member_;
  const int position_;
  std::vector<std::vector<std::vector<ReferenceRow>>> by_expert_;  // [positions * members, L]
};

void append(std::vector<ReferenceRow>& rows, const std::vector<ReferenceRow>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

void place_rank_major(const Receiver& receiver, ReferenceRows& placed) {
  for (int i = 0; i < receiver.num_positions(); ++i) {
    for (int source = 0; source < receiver.num_members(); ++source) {
      const std::vector<ReferenceRow> rows = receiver.rows_of_tokens(source, receiver.position(i));
      append(placed.rows, rows);
      placed.rows_per_source.push_back(static_cast<std::int64_t>(rows.size()));
    }
  }
}

void place_by_expert(const ExchangeConfig& config, const Receiver& receiver,
                     std::int64_t expert_capacity, ReferenceRows& placed) {
  for (int expert = 0; expert < receiver.num_local_experts(); ++expert) {
    const auto first = static_cast<std::int64_t>(placed.rows.size());
    placed.expert_offsets.push_back(first);
    for (int i = 0; i < receiver.num_positions(); ++i) {
      for (int source = 0; source < receiver.num_members(); ++source)
        append(placed.rows, receiver.rows_of_expert(source, receiver.position(i), expert));
    }
    const std::int64_t num_rows = static_cast<std::int64_t>(placed.rows.size()) - first;
    placed.rows.resize(first + (config.layout == Layout::kPadded
                                    ? expert_capacity
                                    : round_up(num_rows, config.expert_alignment)));
  }
  placed.expert_offsets.push_back(static_cast<std::int64_t>(placed.rows.size()));
}

}  // namespace

std::int64_t reference_expert_capacity(const ExchangeConfig& config, std::size_t num_ranks) {
  return config.expert_capacity != 0 ? config.expert_capacity
                                     : config.max_tokens * static_cast<std::int64_t>(num_ranks);
}

ReferenceRows reference_rows(const ExchangeConfig& config, const ReferenceRouting& routing,
                             int member, int position) {
  const Receiver receiver(routing, member, position);
  ReferenceRows placed;
  for (int i = 0; i < receiver.num_positions(); ++i) {
    for (int expert = 0; expert < receiver.num_local_experts(); ++expert) {
      for (int source = 0; source < receiver.num_members(); ++source) {
        placed.counts.push_back(static_cast<std::int64_t>(
            receiver.rows_of_expert(source, receiver.position(i), expert).size()));
      }
    }
  }
  if (config.layout == Layout::kRankMajor) {
    place_rank_major(receiver, placed);
  } else {
    place_by_expert(config, receiver, reference_expert_capacity(config, routing.entries.size()),
                    placed);
  }
  return placed;
}

}  // namespace ferry::internal
