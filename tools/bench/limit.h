// Limit: the time that the memory traffic of a plan takes if every slot is known in advance and all
// memory is in one address space. Pinned threads copy each token to its slots (dispatch). Then they
// read the rows of each token and write its result (combine). They use no counts, flags or other
// processes.
//
// The limit is a yardstick and not a lower bound: an exchange that moves the same rows in another
// order, or copies fewer bytes, can take less time (README.md, "places known"). The process that
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
  // The median pair of each round, for the way that was fastest in that round.
  std::vector<double> rounds_us = {};
  // The times from a core to its neighbour (flag_time.h), before and after each round. Empty with
  // fewer than two cores.
  std::vector<double> flags_ns = {};

  // Whether the same traffic took much longer in one round than in another. Then the speed of the
  // memory or of a cache has changed.
  bool memory_changed() const noexcept {
    constexpr double kSpeedsApart = 1.25;
    const auto [least, most] = std::ranges::minmax_element(rounds_us);
    return least != rounds_us.end() && *most > kSpeedsApart * *least;
  }
};

class Limit {
 public:
  explicit Limit(const Plan& plan);

  // Runs one round over all ways to move the rows, and then releases the memory. The bench runs
  // rounds before and after the ranks, to average the speed of a machine whose speed changes.
  void run();

  // The medians over all rounds, for the way whose pair takes the least time.
  LimitTimes times() const;

  // A way to copy and a way to reduce, with the samples of all rounds.
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
