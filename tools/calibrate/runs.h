// Runs `ferry bench` for a calibration.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace ferry::tools {

// One run of `ferry bench` on one node.
struct CopySample {
  int ranks = 0;
  // Summed over ranks. A token counts once for each rank that receives it.
  double tokens = 0, bytes = 0;
  double dispatch_us = 0, combine_us = 0;

  double pair_us() const { return dispatch_us + combine_us; }
};

// The runs of one place of the cores. The hypervisor of a virtual machine may move cores from one
// cache to two caches and back (bench/flag_time.h).
struct CopySamples {
  double flag_ns = 0;              // the time from one core to the next; 0: there is one core
  int processors = 1;              // the number of processors that the ranks shared
  std::vector<CopySample> shapes;  // the best run of each shape
};

struct Calibration {
  std::vector<CopySamples> places;  // at least one place; the first one has the most runs
  // Runs that were discarded because the cores were moved during them.
  int runs_between = 0;
};

// The runs of a calibration, for each place of the cores and each shape.
class CopyRuns {
 public:
  CopyRuns(std::size_t num_shapes, int rounds) : num_shapes_(num_shapes), rounds_(rounds) {}

  // The shape with the fewest runs in the place of the cores at which a flag takes this long.
  std::size_t rarest_shape(double flag_ns);
  // Adds a run, unless the cores were moved during it.
  void add(std::size_t shape, std::span<const double> flags_ns, const CopySample& sample);
  // Whether all shapes were run `rounds` times in one place.
  bool enough() const;
  // Returns the places in which every shape was run at least half of `rounds` times. Throws
  // std::runtime_error if there is no such place.
  Calibration best() const;

 private:
  struct Place {
    double flag_ns = 0;
    std::vector<std::vector<CopySample>> runs = {};  // for each shape

    std::size_t rarest() const;
    int fewest() const { return static_cast<int>(runs[rarest()].size()); }
  };

  Place& place(double flag_ns);

  std::size_t num_shapes_;
  int rounds_;
  std::vector<Place> places_ = {};
  int runs_between_ = 0;
};

// Runs each shape until every shape was run `rounds` times in one place of the cores, or five times
// as many runs were made. README and docs show other shapes. Throws std::runtime_error if the cores
// stay in no place long enough.
Calibration measure_copies(int rounds);

// Returns the path of this program.
std::string own_program();

// Returns the JSON that `<this program> <before> bench <words> --json` prints. Throws
// std::runtime_error if it cannot start, and std::invalid_argument if it prints no JSON.
nlohmann::json run_bench(const std::string& before, const std::string& words);

}  // namespace ferry::tools
