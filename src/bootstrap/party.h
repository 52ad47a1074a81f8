// Party: who meets, and where: what both sides of a rendezvous of processes are made from. Made by
// star.cc's callers; read by Hub, Spoke and the meeting.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bootstrap/door.h"
#include "bootstrap/hello.h"

namespace ferry::internal {

struct Party {
  Door door;
  Hello self;
  // Ranks of the group that take part, ascending; the first is the hub. A seat is a place in here.
  std::vector<int> ranks;

  int hub() const { return ranks.front(); }
  std::size_t size() const { return ranks.size(); }
  // -1: not invited.
  int seat(int rank) const {
    const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return place != ranks.end() && *place == rank ? static_cast<int>(place - ranks.begin()) : -1;
  }
};

}  // namespace ferry::internal
