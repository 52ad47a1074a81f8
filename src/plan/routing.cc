#include "plan/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "ferry/status.h"
#include "plan/hash.h"

namespace ferry::internal {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(Code::kInvalidArgument, what); }

}  // namespace

Routing::Routing(const Workload& workload, const std::vector<int>& rank_experts)
    : top_k_(workload.exchange.top_k),
      experts_(workload.exchange.num_experts),
      groups_(workload.groups),
      groups_chosen_(workload.groups_chosen),
      rank_experts_(rank_experts),
      first_(rank_experts.size() + 1) {
  std::partial_sum(rank_experts.begin(), rank_experts.end(), first_.begin() + 1);
  if (groups_ < 1 || experts_ % groups_ != 0)
    refuse(fmt::format("{} groups do not divide {} experts", groups_, experts_));
  if (groups_chosen_ < 1 || groups_chosen_ > groups_)
    refuse(fmt::format("{} groups are chosen, not 1 to {}", groups_chosen_, groups_));
  if (experts_ / groups_ * groups_chosen_ < top_k_)
    refuse(fmt::format("{} experts of {} groups are fewer than top-k {}",
                       experts_ / groups_ * groups_chosen_, groups_chosen_, top_k_));
  if (!workload.ids.empty())
    read_ids(workload.ids);
  else if (!workload.loads.empty())
    read_loads(workload.loads);
  else if (groups_chosen_ < groups_)
    kind_ = Kind::kLimited;
}

// Reads the loads. A token chooses an expert in proportion to its load, and at most once.
void Routing::read_loads(const std::vector<double>& loads) {
  if (std::ssize(loads) != experts_)
    refuse(fmt::format("{} loads for {} experts", loads.size(), experts_));
  for (std::size_t i = 0; i < loads.size(); ++i)
    if (!(loads[i] >= 0) || !std::isfinite(loads[i]))
      refuse(fmt::format("load of expert {} is {}, at least 0", i, loads[i]));
  const auto some = std::ranges::count_if(loads, [](double load) { return load > 0; });
  if (some < top_k_)
    refuse(fmt::format("{} experts with a load are fewer than top-k {}", some, top_k_));
  kind_ = Kind::kLoads;
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  shares_.resize(loads.size());
  for (std::size_t i = 0; i < loads.size(); ++i) {
    shares_[i] = loads[i] * top_k_ / sum;
    if (shares_[i] > 1)
      refuse(
          fmt::format("expert {} has {:.3g} of all loads, more than 1/{}: no token chooses an "
                      "expert twice",
                      i, loads[i] / sum, top_k_));
  }
  draws_.emplace(shares_, first_, top_k_);
}

void Routing::read_ids(const std::vector<int>& ids) {
  if (ids.size() % top_k_ != 0)
    refuse(fmt::format("{} ids are not a multiple of top-k {}", ids.size(), top_k_));
  kind_ = Kind::kIds;
  ids_ = ids;
  shares_.resize(experts_);
  const double tokens = static_cast<double>(ids.size()) / top_k_;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < -1 || ids[i] >= experts_)
      refuse(fmt::format("token {}, k {}: id {} is not in [-1, {})", i / top_k_, i % top_k_, ids[i],
                         experts_));
    if (ids[i] >= 0) shares_[ids[i]] += 1 / tokens;
  }
}

// Two ranks are equal if they have equally many experts, with equal loads, in equal groups of
// experts. In a trace no two ranks are equal.
RankTraits Routing::traits() const {
  RankTraits traits{.colours = {rank_experts_.begin(), rank_experts_.end()}, .groups = {}};
  const int group_size = experts_ / groups_;
  if (kind_ == Kind::kLimited) traits.groups.emplace_back(rank_experts_.size());
  for (std::size_t rank = 0; rank < rank_experts_.size(); ++rank) {
    std::uint64_t& colour = traits.colours[rank];
    if (kind_ == Kind::kLoads) {
      for (int expert = first_[rank]; expert < first_[rank + 1]; ++expert)
        colour += mixed(std::bit_cast<std::uint64_t>(shares_[expert]));
    } else if (kind_ == Kind::kLimited) {
      const int within = first_[rank] % group_size;
      const bool whole = within == 0 && rank_experts_[rank] % group_size == 0;
      const bool inside = within + rank_experts_[rank] <= group_size;
      if (!whole && !inside) colour += mixed(rank);
      traits.groups[0][rank] = std::min(first_[rank] / group_size, groups_ - 1);
    } else if (kind_ == Kind::kIds) {
      colour = rank;
    }
  }
  return traits;
}

Routing::Ranks Routing::of(int rank) const {
  Ranks ranks{.experts = rank_experts_[rank]};
  if (!uniform()) ranks.list.push_back(rank);
  return ranks;
}

void Routing::add(Ranks& ranks, const Ranks& others) const {
  ranks.experts += others.experts;
  ranks.list.insert(ranks.list.end(), others.list.begin(), others.list.end());
}

double Routing::touched(const Ranks& ranks) const {
  if (ranks.experts == 0) return 0;
  std::vector<int> key = uniform() ? std::vector{ranks.experts} : ranks.list;
  std::ranges::sort(key);
  const auto [found, is_new] = known_.try_emplace(std::move(key));
  if (!is_new) return found->second;
  double missed = 0;
  switch (kind_) {
    case Kind::kUniform: missed = 1 - touch_probability(ranks.experts, experts_, top_k_); break;
    case Kind::kLimited: missed = missed_limited(ranks); break;
    case Kind::kLoads: missed = draws_->missed(found->first); break;
    case Kind::kIds: missed = missed_ids(ranks); break;
  }
  return found->second = 1 - missed;
}

double Routing::rows(const Ranks& ranks) const {
  if (shares_.empty()) return static_cast<double>(top_k_) * ranks.experts / experts_;
  double rows = 0;
  for (const int rank : ranks.list)
    for (int expert = first_[rank]; expert < first_[rank + 1]; ++expert) rows += shares_[expert];
  return rows;
}

Demand Routing::demand() const {
  const auto touched_ranks = [this](std::span<const int> ranks) {
    Ranks all;
    for (const int rank : ranks) add(all, of(rank));
    return touched(all);
  };
  return {.touched = touched_ranks, .rows = [this](int rank) { return rows(of(rank)); }};
}

std::vector<bool> Routing::experts_in(const Ranks& ranks) const {
  std::vector<bool> in(experts_);
  for (const int rank : ranks.list)
    for (int expert = first_[rank]; expert < first_[rank + 1]; ++expert) in[expert] = true;
  return in;
}

// The share of tokens without an expert on these ranks. It sums over all choices of M groups, by
// the number of the ranks' experts in these groups.
double Routing::missed_limited(const Ranks& ranks) const {
  const std::vector<bool> in = experts_in(ranks);
  const int group_size = experts_ / groups_;
  // ways[m][n] is the number of choices of m groups that hold n experts of these ranks.
  std::vector<std::vector<double>> ways(groups_chosen_ + 1, std::vector<double>(ranks.experts + 1));
  ways[0][0] = 1;
  for (int group = 0; group < groups_; ++group) {
    const auto begin = in.begin() + std::ptrdiff_t{group} * group_size;
    const int wanted = static_cast<int>(std::count(begin, begin + group_size, true));
    for (int m = groups_chosen_; m > 0; --m)
      for (int n = wanted; n <= ranks.experts; ++n) ways[m][n] += ways[m - 1][n - wanted];
  }
  const std::vector<double>& all = ways[groups_chosen_];
  double missed = 0, choices = 0;
  for (int n = 0; n <= ranks.experts; ++n) {
    choices += all[n];
    missed += all[n] * (1 - touch_probability(n, group_size * groups_chosen_, top_k_));
  }
  return missed / choices;
}

double Routing::missed_ids(const Ranks& ranks) const {
  const std::vector<bool> in = experts_in(ranks);
  std::int64_t missed = 0;
  const std::int64_t tokens = std::ssize(ids_) / top_k_;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto begin = ids_.begin() + token * top_k_;
    if (std::none_of(begin, begin + top_k_, [&](int id) { return id >= 0 && in[id]; })) ++missed;
  }
  return tokens == 0 ? 1 : static_cast<double>(missed) / static_cast<double>(tokens);
}

}  // namespace ferry::internal
