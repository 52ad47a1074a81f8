// `ferry doctor --calibrate --hosts`: what crosses between hosts, as part of a machine that `ferry
// plan` reads. Calls calibrate.h.
#pragma once

#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::tools {

// Runs of `ferry bench` between hosts: of one workload, by algorithm.
struct LinkSample {
  struct Times {
    std::string algorithm;
    double dispatch_us = 0, combine_us = 0, pair_us = 0;
  };
  Workload workload;
  std::vector<Times> times;
};

// The machine with other rates of the links between its nodes (of the levels whose rates it has,
// and of the outermost one), another latency of the outermost level and another Host::network_gb_s:
// those at which plan() comes closest to the samples. Throws std::invalid_argument for an algorithm
// that plan() does not know.
Machine fit_links(const Machine& machine, const std::vector<LinkSample>& samples);

struct LinkCalibration {
  std::string file;      // that gets the machine, as JSON
  std::string hosts;     // as of `ferry launch --hosts`
  std::string topology;  // of these hosts
  std::string machine;   // what calibrate() wrote for one host; empty: it is called
  int rounds = 6;        // of all shapes, of calibrate() and between hosts
};

// Runs benches of its own shapes between the hosts. Returns what was found, for people.
std::string calibrate_links(const LinkCalibration& options);

}  // namespace ferry::tools
