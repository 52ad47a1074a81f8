// Host: what the ranks of one host have in common: a star over Unix sockets, segments, and sight of
// each other's processes. Called by processes.cc; calls Star, Liveness and Segment.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bootstrap/star.h"
#include "memory/segment.h"
#include "network/liveness.h"

namespace ferry::internal {

class Host {
 public:
  // Meets the ranks of `party`. `nodes` [ranks of the group]: who shares a segment with whom.
  Host(Party party, const std::vector<int>& nodes, Deadline deadline);

  Star& star() noexcept { return star_; }

  // Collective: the hub makes a segment for each node, every rank maps its own. Null when there is
  // none, with the reason in `problem` of at least one rank.
  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline,
                                         std::string& problem);

  // Whether `rank` is on this host.
  bool has(int rank) const { return party_.seat(rank) >= 0; }
  bool alive(int rank) const noexcept { return liveness_.alive(party_.seat(rank)); }
  int pid(int rank) const noexcept { return liveness_.pid(party_.seat(rank)); }

 private:
  std::shared_ptr<Segment> offer(std::size_t bytes, Deadline deadline);
  std::shared_ptr<Segment> take(std::size_t bytes, Deadline deadline);

  Party party_;
  std::vector<int> nodes_;  // by seat
  Star star_;
  Liveness liveness_;
};

}  // namespace ferry::internal
