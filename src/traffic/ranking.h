// Ranking: the order of candidates for an exchange, and a sentence with the reason. kAuto and the
// planner share it.
#pragma once

#include <string>
#include <vector>

namespace ferry::internal {

// Links of one kind: the bytes of the busiest link in its busier direction, and their time.
struct LinkUse {
  std::string name;
  double gb_s = 0;  // 0: unknown
  double dispatch_bytes = 0, combine_bytes = 0;
  double dispatch_us = 0, combine_us = 0;

  double us() const noexcept { return dispatch_us + combine_us; }
};

// An algorithm or strategy: the time of a dispatch and its combine, and its links, the outermost
// first.
struct Candidate {
  std::string name;
  double pair_us = 0;
  std::string limited_by = {};
  std::vector<LinkUse> links = {};
};

// The link with the most work; "latency" if that work takes less than half of `bound_us`; "nothing"
// without links or time.
std::string limit_of(const std::vector<LinkUse>& links, double bound_us);

// The indices of the candidates, the fastest first. Where candidates are equally fast, or no rate
// is known, fewer bytes on the outermost links come first; then the earlier candidate.
std::vector<int> best_first(const std::vector<Candidate>& candidates);

// The reason why candidates[order[0]] is the best. `order`: the result of best_first().
std::string why(const std::vector<Candidate>& candidates, const std::vector<int>& order);

// "14.3 KB": 1 KB = 1000 bytes, as in the GB/s of links.
std::string bytes_text(double bytes);
// "27.5 us".
std::string time_text(double us);

}  // namespace ferry::internal
