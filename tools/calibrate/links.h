// `ferry doctor --calibrate --hosts`: measures the links between hosts, as part of a machine that
// `ferry plan` reads. Calls calibrate.h.
#pragma once

#include <string>
#include <vector>

#include "ferry/plan.h"

namespace ferry::tools {

// Runs of `ferry bench` between hosts with one workload. `times` has an entry for each run: in
// every round each algorithm runs once.
struct LinkSample {
  struct Times {
    std::string algorithm;
    double dispatch_us = 0, combine_us = 0, pair_us = 0;
  };
  Workload workload;
  std::vector<Times> times;
};

// Returns the machine with the constants at which plan() comes closest to the samples. It fits the
// rates of the links between nodes (of each level that has a rate, and of the outermost level), the
// latency of the outermost level, and Host::network_gb_s. Throws std::invalid_argument for an
// algorithm that plan() does not know.
Machine fit_links(const Machine& machine, const std::vector<LinkSample>& samples);

struct LinkCalibration {
  std::string file;      // the file to which the machine is written, as JSON
  std::string hosts;     // in the form of `ferry launch --hosts`
  std::string topology;  // the topology of these hosts
  // A file that calibrate() wrote for one host. If it is empty, calibrate() is called.
  std::string machine;
  int rounds = 6;  // how often each shape runs, in calibrate() and between hosts
};

// Runs benches between the hosts, with shapes of its own. Returns a text about the result for
// people.
std::string calibrate_links(const LinkCalibration& options);

}  // namespace ferry::tools
