// Ranking: which way of an exchange wins, and why, in one sentence. kAuto and the planner share it.
#pragma once

#include <string>
#include <vector>

namespace ferry::internal {

// Links of one kind: the bytes of the busiest one, in its busier direction, and its time for them.
struct LinkUse {
  std::string name;
  double gb_s = 0;  // 0: unknown
  double dispatch_bytes = 0, combine_bytes = 0;
  double dispatch_us = 0, combine_us = 0;

  double us() const noexcept { return dispatch_us + combine_us; }
};

// One way to do an exchange: the time of a dispatch and its combine, and its links, the outermost
// first.
struct Candidate {
  std::string name;
  double pair_us = 0;
  std::string limited_by = {};
  std::vector<LinkUse> links = {};
};

// The link with the most work; "latency" where waiting takes most of the time, which is at least
// `bound_us`.
std::string limit_of(const std::vector<LinkUse>& links, double bound_us);

// Indices of the candidates: the fastest first; of equally fast ones, and where no rate is known,
// the one with the fewest bytes on the outermost links; of equal ones the earlier.
std::vector<int> best_first(const std::vector<Candidate>& candidates);

// Why candidates[order[0]] is the best. `order` is that of best_first().
std::string why(const std::vector<Candidate>& candidates, const std::vector<int>& order);

// "14.3 KB": 1 KB = 1000 bytes, as in the GB/s of links.
std::string bytes_text(double bytes);
// "27.5 us".
std::string time_text(double us);

}  // namespace ferry::internal
