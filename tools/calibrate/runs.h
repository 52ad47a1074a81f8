// The runs of `ferry bench` behind a calibration.
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
  double tokens = 0, bytes = 0;  // of all ranks; a token counts once for each rank that gets it
  double dispatch_us = 0, combine_us = 0;

  double pair_us() const { return dispatch_us + combine_us; }
};

// Runs of one place of the cores: the hypervisor of a virtual machine may move them from one cache
// to two and back (bench/flag_time.h).
struct CopySamples {
  double flag_ns = 0;              // from a core to the next; 0: one core
  int processors = 1;              // that the ranks shared
  std::vector<CopySample> shapes;  // the best run of each
};

struct Calibration {
  std::vector<CopySamples> places;  // at least one; the first has the most runs
  int runs_between = 0;             // not used: the cores were moved during them
};

// The runs of a calibration, by the place of the cores and by shape.
class CopyRuns {
 public:
  CopyRuns(std::size_t num_shapes, int rounds) : num_shapes_(num_shapes), rounds_(rounds) {}

  // The shape that was run least where a flag takes so long.
  std::size_t rarest_shape(double flag_ns);
  // One during which the cores were moved does not count.
  void add(std::size_t shape, std::span<const double> flags_ns, const CopySample& sample);
  // Whether all shapes were run `rounds` times in one place.
  bool enough() const;
  // The places in which shapes were run at least half as often. Throws std::runtime_error where
  // there is none.
  Calibration best() const;

 private:
  struct Place {
    double flag_ns = 0;
    std::vector<std::vector<CopySample>> runs = {};  // of each shape

    std::size_t rarest() const;
    int fewest() const { return static_cast<int>(runs[rarest()].size()); }
  };

  Place& place(double flag_ns);

  std::size_t num_shapes_;
  int rounds_;
  std::vector<Place> places_ = {};
  int runs_between_ = 0;
};

// Runs shapes that README and docs do not show, each `rounds` times in one place of the cores.
// Throws std::runtime_error where the cores stay in no place long enough.
Calibration measure_copies(int rounds);

// The path of this program.
std::string own_program();

// What `<this program> <before> bench <words> --json` prints. Throws std::runtime_error when it
// cannot start, and std::invalid_argument when it prints no JSON.
nlohmann::json run_bench(const std::string& before, const std::string& words);

}  // namespace ferry::tools
