// HopSums: the bytes of all hops of forests, summed for each link and for each end of hops. They
// are used where one task for each hop would be too many tasks.
#pragma once

#include <array>
#include <limits>
#include <vector>

#include "plan/forest.h"
#include "plan/input.h"
#include "plan/resources.h"

namespace ferry::internal {

// The load of some hops on one link, or on all resources at one end of the hops.
struct Sum {
  double bytes = 0;
  double us = 0;  // for a link: the time of its work
  // The earliest time at which the first byte can move.
  double first_us = std::numeric_limits<double>::infinity();

  void add(double more_bytes, double more_us, double start_us);
};

class HopSums {
 public:
  HopSums(const BuildInput& input, Resources& resources, const std::vector<WeighedForest>& forests);

  // [passages]: the uses of the first hop that takes a passage, without its link. Other hops with
  // that passage use equal resources.
  const std::vector<std::vector<Use>>& uses() const noexcept { return uses_; }

  // The hops with one passage at one sender or receiver. A combine swaps senders and receivers.
  struct End {
    std::size_t passage = 0;  // Resources::index()
    bool receives = false;
    std::vector<Use> uses = {};
    std::array<Sum, 2> sums = {};  // [halves]
  };
  const std::vector<End>& ends() const noexcept { return used_; }

  // The links of one kind.
  struct Links {
    // An index into Resources::kinds(). -1: the links have no rate, only their port has one.
    int load = -1;
    double us_per_byte = 0;
    // [ranks, ranks]: whether the link from the first rank to the second is used.
    std::vector<bool> used = {};
    std::int64_t num_used = 0;
    // [halves]: four links that are the maximum in some respect. They are the link with the most
    // bytes, the one with the most work, and the ones that end last at their rate and at twice
    // their rate. No bound or load depends on other links.
    std::array<std::array<Sum, 4>, 2> busiest = {};

    void add(Half half, const Sum& link);
  };
  const std::vector<Links>& links() const noexcept { return links_; }

  // The bytes that a rank receives for its own experts in a dispatch, and those that it passes on.
  // Each is the maximum over ranks.
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
  std::vector<bool> known_;             // [passages]: whether uses_ has its uses
  std::vector<std::vector<Use>> uses_;  // [passages]
  // [halves][at a sender, at a receiver][passages, ranks]
  std::array<std::array<std::vector<Sum>, 2>, 2> ends_;
  std::vector<End> used_;
  std::array<std::vector<Sum>, 2> to_;     // [halves][kinds of links, ranks]: sums for one sender
  std::vector<std::size_t> touched_;       // the indices of the elements of to_ that are not 0
  std::vector<double> received_, staged_;  // [ranks]
};

}  // namespace ferry::internal
