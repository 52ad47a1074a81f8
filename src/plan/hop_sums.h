// HopSums: the bytes of all hops of forests, summed by links and by the ends of hops, where a task
// for each hop would be too many.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "plan/forest.h"
#include "plan/input.h"
#include "plan/resources.h"

namespace ferry::internal {

// What some hops put on one link, or on all that they use at one end.
struct Sum {
  double bytes = 0;
  double us = 0;                                              // of links: of its work
  double first_us = std::numeric_limits<double>::infinity();  // when the first byte can move

  void add(double more_bytes, double more_us, double start_us);
};

class HopSums {
 public:
  HopSums(const BuildInput& input, Resources& resources, const std::vector<WeighedForest>& forests);

  // [passages]: hops over one use equal resources, if not the same ones: these are the uses of the
  // first hop, but for its link.
  const std::vector<std::vector<Use>>& uses() const noexcept { return uses_; }

  // Hops over a passage at one of their senders, or receivers. Combine swaps the two.
  struct End {
    std::size_t passage = 0;  // Resources::index()
    bool receives = false;
    std::vector<Use> uses = {};
    std::array<Sum, 2> sums = {};  // [halves]
  };
  const std::vector<End>& ends() const noexcept { return used_; }

  // The links of a kind.
  struct Links {
    int load = -1;  // an index into Resources::kinds(); -1: only their port has a rate
    double us_per_byte = 0;
    std::vector<bool> used = {};  // [ranks, ranks]: from, to
    std::int64_t num_used = 0;
    // [halves]: those with most bytes, with most work, and that end last, at their rate and at
    // twice it. No bound or load depends on others.
    std::array<std::array<Sum, 4>, 2> busiest = {};

    void add(Half half, const Sum& link);
  };
  const std::vector<Links>& links() const noexcept { return links_; }

  // Dispatch, of the rank with most: bytes of its own, and those that it passes on.
  double received_bytes() const;
  double staged_bytes() const;

 private:
  // Some of the hops over one link.
  struct Hops {
    int from = 0, way = 0, node = 0;
    double count = 1, start_us = 0;
    bool own = true;
  };

  void cross(int from);
  void add(const Hops& hops);
  void add_to_link(const Hops& hops, Half half, double bytes, double start_us);
  void close_links(int from);
  void close_ends();
  void note_uses(const Resources::Passage& passage, int from, int to);

  const BuildInput& input_;
  Resources& resources_;
  const std::vector<WeighedForest>& forests_;
  std::vector<Links> links_;            // [kinds of links]
  std::vector<bool> known_;             // [passages]: uses are noted
  std::vector<std::vector<Use>> uses_;  // [passages]
  // [halves][at a sender, at a receiver][passages, ranks]
  std::array<std::array<std::vector<Sum>, 2>, 2> ends_;
  std::vector<End> used_;
  std::array<std::vector<Sum>, 2> to_;     // [halves][kinds of links, ranks]: from one rank
  std::vector<std::size_t> touched_;       // which of them
  std::vector<double> received_, staged_;  // [ranks]
};

}  // namespace ferry::internal
