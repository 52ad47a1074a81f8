// Limit: the time that the memory traffic of a plan takes where every slot is known in advance and
// all memory is in one address space. Pinned threads copy each token to its slots (dispatch), then
// read the rows of each token and write its result (combine), without counts, flags or other
// processes. It is a yardstick and not a lower bound: an exchange that moves the same rows in
// another order, or copies fewer bytes, can take less (README.md, "places known"). The process that
// measures it must be idle otherwise. Calls the row kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "tools/bench/plan.h"

namespace ferry::bench {

struct LimitTimes {
  double dispatch_us = 0;
  double combine_us = 0;
  double pair_us = 0;       // a dispatch and the combine after it
  const char* copy = "";    // the fastest way to copy
  const char* reduce = "";  // the fastest way to write results
  // For each round the median pair of the way that was fastest in it.
  std::vector<double> rounds_us = {};
  // From a core to its neighbour (flag_time.h), before and after each round; two cores at least.
  std::vector<double> flags_ns = {};

  // Whether the same traffic took so much more in one round than in another that the memory, or a
  // cache, has changed its speed.
  bool memory_changed() const noexcept {
    constexpr double kSpeedsApart = 1.25;
    const auto [least, most] = std::ranges::minmax_element(rounds_us);
    return least != rounds_us.end() && *most > kSpeedsApart * *least;
  }
};

class Limit {
 public:
  explicit Limit(const Plan& plan);

  // One round over all ways to move the rows; memory is given back afterwards. Rounds before and
  // after the ranks ran average out a machine that changes its speed.
  void run();

  // Medians over all rounds, of the way whose pair takes least.
  LimitTimes times() const;

  // A copy and a reduction, with the samples of all rounds.
  struct Way {
    int copy = 0;
    int reduce = 0;
    std::vector<double> dispatch_us;
    std::vector<double> combine_us;
  };

 private:
  const Plan& plan_;
  std::size_t num_threads_;
  std::vector<Way> ways_;
  std::vector<double> rounds_us_;
  std::vector<double> flags_ns_;
};

}  // namespace ferry::bench
