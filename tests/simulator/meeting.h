// Meeting: the rendezvous of the ranks of a simulation, in place of src/bootstrap: what processes
// of several hosts get from it, in virtual time. Who died or went away is told at once to those
// that gather; alive() knows the processes of its own node. Made by run.cc.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "ferry/status.h"
#include "simulator/simulation.h"

namespace ferry::test {

class Meeting {
 public:
  Meeting(Simulation& simulation, std::vector<int> nodes);
  std::unique_ptr<internal::Rendezvous> seat(int rank);
  // The last segment that a node was given; null: none.
  std::shared_ptr<internal::Segment> last_segment(int node) const;

 private:
  class Seat;

  int size() const { return static_cast<int>(nodes_.size()); }
  int first_absent(const std::function<bool(int)>& is_meant) const;

  Simulation& simulation_;
  const std::vector<int> nodes_;
  std::vector<std::string> texts_;
  std::vector<bool> came_, left_;
  int num_came_ = 0;
  std::uint64_t num_gathers_ = 0;
  std::shared_ptr<const std::vector<std::string>> gathered_;  // of the last complete gather
  std::optional<Error> failure_;
  std::vector<std::weak_ptr<internal::Segment>> segments_;  // [nodes] the last ones
  std::vector<std::shared_ptr<internal::Segment>> new_;     // until all took one
  int num_taken_ = 0;
};

}  // namespace ferry::test
