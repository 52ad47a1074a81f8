// Routing: the share of a rank's tokens that chose an expert on a set of ranks. It is exact for
// uniform and group-limited choices and for a trace. With loads, a token draws K different experts
// that are otherwise independent, with odds (draws.h) that give each expert its load.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ferry/plan.h"
#include "plan/draws.h"
#include "plan/rank_traits.h"
#include "traffic/traffic.h"

namespace ferry::internal {

class Routing {
 public:
  // Throws if the loads or ids do not fit the experts.
  Routing(const Workload& workload, const std::vector<int>& rank_experts);

  // A set of ranks, with the number of their experts.
  struct Ranks {
    int experts = 0;
    std::vector<int> list = {};  // empty if only the number of experts matters
  };
  // Values per token: the share of tokens with an expert on any of some ranks, the sum of this
  // share over each rank alone, and the number of rows().
  struct Wanted {
    double touched = 0, touched_alone = 0, rows = 0;
  };
  Ranks of(int rank) const;
  void add(Ranks& ranks, const Ranks& others) const;

  // The share of all tokens that have at least one expert on these ranks.
  double touched(const Ranks& ranks) const;
  // The number of (token, expert) pairs on these ranks, per token.
  double rows(const Ranks& ranks) const;
  // The demand for the walk down a tree. The result refers to this object.
  Demand demand() const;
  // The traits of the ranks. Equally many tokens chose an expert on ranks with equal traits, and on
  // sets of such ranks.
  RankTraits traits() const;
  // Whether ranks with equally many experts receive equally many tokens.
  bool uniform() const noexcept { return kind_ == Kind::kUniform; }
  int experts_of(int rank) const { return rank_experts_[rank]; }

 private:
  enum class Kind { kUniform, kLimited, kLoads, kIds };

  void read_loads(const std::vector<double>& loads);
  void read_ids(const std::vector<int>& ids);
  std::vector<bool> experts_in(const Ranks& ranks) const;
  double missed_limited(const Ranks& ranks) const;
  double missed_ids(const Ranks& ranks) const;

  Kind kind_ = Kind::kUniform;
  int top_k_, experts_, groups_, groups_chosen_;
  std::vector<int> rank_experts_, first_;  // [ranks], [ranks + 1]: contiguous blocks
  std::vector<double> shares_;             // kLoads, kIds: [experts]
  std::optional<Draws> draws_;             // kLoads
  std::vector<int> ids_;                   // kIds: [tokens, K]
  // Known results of touched(), by the number of experts or by the ranks.
  mutable std::map<std::vector<int>, double> known_;
};

}  // namespace ferry::internal
