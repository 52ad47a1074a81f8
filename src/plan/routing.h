// Routing: which share of a rank's tokens wants an expert of a set of ranks. Exact for uniform and
// group-limited choices and for a trace; for loads the K experts of a token are drawn independently
// but for their number, so that each is chosen as often as its load says.
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
  // Throws for loads or ids that do not fit the experts.
  Routing(const Workload& workload, const std::vector<int>& rank_experts);

  // Disjoint ranks of which tokens may want an expert.
  struct Ranks {
    int experts = 0;
    std::vector<int> list = {};  // empty where only their number counts
  };
  // Shares of the tokens: those with an expert on some ranks; on each rank alone, added up; and the
  // pairs of rows().
  struct Wanted {
    double touched = 0, touched_alone = 0, rows = 0;
  };
  Ranks of(int rank) const;
  void add(Ranks& ranks, const Ranks& others) const;

  // The share of all tokens that have at least one expert there.
  double touched(const Ranks& ranks) const;
  // (Token, expert) pairs there, per token.
  double rows(const Ranks& ranks) const;
  // The same for the walk down a tree; this must outlive it.
  Demand demand() const;
  // Equally many tokens want an expert of ranks with equal traits, and of sets of them.
  RankTraits traits() const;
  // Ranks with equally many experts are wanted equally.
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
  std::vector<int> rank_experts_, first_;             // [ranks], [ranks + 1]: contiguous blocks
  std::vector<double> shares_;                        // kLoads, kIds: [experts]
  std::optional<Draws> draws_;                        // kLoads
  std::vector<int> ids_;                              // kIds: [tokens, K]
  mutable std::map<std::vector<int>, double> known_;  // touched(), by experts or ranks
};

}  // namespace ferry::internal
