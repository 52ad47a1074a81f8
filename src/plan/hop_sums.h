// HopSums: the bytes of all hops of forests, summed for each link and for each end of hops. They
// replace one task for each hop, where these would be too many.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "plan/forest.h"
#include "plan/input.h"
#include "plan/resources.h"

namespace ferry::internal {

// The load of some hops on one link, or on all resources that they use at one end.
struct Sum {
  double bytes = 0;
  double us = 0;                                              // of a link: time of its work
  double first_us = std::numeric_limits<double>::infinity();  // when the first byte can move

  void add(double more_bytes, double more_us, double start_us);
};

class HopSums {
 public:
  HopSums(const BuildInput& input, Resources& resources, const std::vector<WeighedForest>& forests);

  // [passages]: the uses of the first hop over a passage, without its link. Other hops over it use
  // equal resources.
  const std::vector<std::vector<Use>>& uses() const noexcept { return uses_; }

  // The hops over a passage at one of their senders or receivers. Combine swaps the two.
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
    // [halves]: the link with the most bytes, the one with the most work, and the ones that end
    // last at their rate and at twice their rate. No bound or load depends on other links.
    std::array<std::array<Sum, 4>, 2> busiest = {};

    void add(Half half, const Sum& link);
  };
  const std::vector<Links>& links() const noexcept { return links_; }

  // Bytes of the rank with the most, in a dispatch: for its own experts; passed on.
  double received_bytes() const;
  double staged_bytes() const;

 private:
  // Hops over one link to one node of a forest.
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
  std::vector<std::size_t> touched_;       // indices of the elements of to_ that are not 0
  std::vector<double> received_, staged_;  // [ranks]
};

}  // namespace ferry::internal
