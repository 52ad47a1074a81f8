// HopSums: all hops of forests put on the resources that they use. Called by totals.cc; calls
// forest.h and build.h.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "plan/build.h"
#include "plan/forest.h"

namespace ferry::internal {

enum Half { kDispatch, kCombine };

// Of a node of a forest; combine takes its hop the other way.
struct Weight {
  std::array<double, 2> bytes = {};  // [halves]
  double home_start_us = 0;          // when the first byte of its combine can move
};

// Of a resource.
struct Sum {
  double bytes = 0, us = 0;
  double first_us = std::numeric_limits<double>::infinity();  // when the first byte can move

  void add(double more_bytes, double more_us, double start_us) {
    bytes += more_bytes, us += more_us;
    first_us = std::min(first_us, start_us);
  }
};

// Of the resources of a load.
struct Most {
  double bytes = 0, us = 0;
  double end_us = 0, end_doubled_us = 0;  // first_us and all work, at the rate and at twice it

  void add(const Sum& sum) {
    bytes = std::max(bytes, sum.bytes);
    us = std::max(us, sum.us);
    if (sum.us <= 0) return;
    end_us = std::max(end_us, sum.first_us + sum.us);
    end_doubled_us = std::max(end_doubled_us, sum.first_us + sum.us / 2);
  }
};

class HopSums {
 public:
  // One forest, with the weights of its nodes, for each way.
  HopSums(const BuildInput& input, Resources& resources, const std::vector<const Forest*>& forests,
          const std::vector<std::vector<Weight>>& weights);

  // What a byte of a hop takes of each resource, of the link first; its load is -1 where only its
  // port has a rate.
  struct Pace {
    int load = -1;
    double us_per_byte = 0;
  };
  const std::vector<Pace>& pace(const Resources::Passage& passage) const {
    return paces_[index(passage)];
  }
  std::size_t num_passages() const noexcept { return paces_.size(); }
  std::size_t index(const Resources::Passage& passage) const;
  // What hops over a passage use at one of their senders, or receivers.
  struct End {
    std::size_t passage = 0;
    bool receives = false;
    std::vector<Use> uses = {};
  };
  const std::vector<End>& ends() const noexcept { return used_; }

  // [halves][loads]: of links.
  const std::vector<Most>& links(Half half) const noexcept { return links_[half]; }
  // [halves][resources]: of all else.
  const std::vector<Sum>& sums(Half half) const noexcept { return sums_[half]; }
  // [loads]: links that are used.
  std::vector<std::int64_t> num_links() const;
  // Dispatch, of the rank with most: bytes of its own, and those that it passes on.
  double received() const { return std::ranges::max(received_); }
  double staged() const { return std::ranges::max(staged_); }

 private:
  // Some of the hops over one link.
  struct Hops {
    int from = 0, way = 0, node = 0;
    double count = 1, start_us = 0;
    bool own = true;
  };
  struct LinkKind {
    Pace pace = {};
    std::vector<bool> used = {};  // [ranks, ranks]: from, to
    std::int64_t num_used = 0;
  };

  void cross(int from);
  void add(const Hops& hops);
  void add_to_link(const Hops& hops, Half half, double bytes, double start_us);
  void close_links(int from);
  void close_ends();
  void add_to_resource(const Use& use, Half half, const Sum& sum);
  Resources::Passage passage(std::size_t index) const;
  void make_pace(const Resources::Passage& passage, int from, int to);

  const BuildInput& input_;
  Resources& resources_;
  const std::vector<const Forest*>& forests_;
  const std::vector<std::vector<Weight>>& weights_;
  std::vector<LinkKind> kinds_;           // of links
  std::vector<std::vector<Pace>> paces_;  // [passages]
  // [halves][at a sender, at a receiver][passages, ranks]
  std::array<std::array<std::vector<Sum>, 2>, 2> ends_;
  std::vector<End> used_;
  std::array<std::vector<Sum>, 2> to_;  // [halves][kinds of links, ranks]: from one rank
  std::vector<std::size_t> touched_;    // which of them
  std::array<std::vector<Sum>, 2> sums_;
  std::array<std::vector<Most>, 2> links_;
  std::vector<double> received_, staged_;  // [ranks]
};

}  // namespace ferry::internal
