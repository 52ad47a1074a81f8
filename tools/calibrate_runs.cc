// Runs `ferry bench`; see calibrate_runs.h.
#include "calibrate_runs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "base/clock.h"
#include "bench/cores.h"
#include "bench/flag_time.h"
#include "plan_expect.h"

namespace ferry::tools {
namespace {

using nlohmann::json;

struct Shape {
  int ranks, tokens, hidden;
};
// With 8 of 96 experts: rows of 0.8 to 600 MB, short and long ones, closer where caches end.
constexpr std::array<Shape, 18> kShapes = {{{2, 8, 3072},
                                            {8, 8, 1536},
                                            {2, 24, 6144},
                                            {4, 24, 3072},
                                            {2, 96, 3072},
                                            {4, 64, 3072},
                                            {8, 32, 4096},
                                            {8, 24, 6144},
                                            {2, 240, 3072},
                                            {4, 56, 6144},
                                            {2, 240, 6144},
                                            {4, 160, 3072},
                                            {2, 320, 6144},
                                            {8, 384, 1536},
                                            {4, 384, 6144},
                                            {8, 768, 3072},
                                            {4, 4096, 1536},
                                            {2, 3072, 6144}}};
constexpr int kRounds = 6;                      // in which shapes take turns; the best one counts
constexpr std::chrono::seconds kMostWait{180};  // for the cores to come back

// Runs benches while the cores are where they were when this was made.
class SteadyRuns {
 public:
  // Repeats the bench until the cores were not moved while it ran.
  json run(const Shape& shape) {
    const internal::Deadline end = internal::Deadline::after(kMostWait);
    for (;;) {
      while (!alike({flag_now_ns()})) {
        if (end.passed()) refuse();
        std::this_thread::sleep_for(kNap);
      }
      json measured = run_bench(
          "", fmt::format("--pin --ranks {} --tokens {} --hidden {} --experts 96 --top-k 8",
                          shape.ranks, shape.tokens, shape.hidden));
      if (alike(measured.at("flags_ns"))) return measured;
      ++runs_apart_;
      if (end.passed()) refuse();
    }
  }

  double flag_ns() const { return flag_ns_; }
  int runs_apart() const { return runs_apart_; }

 private:
  static constexpr std::chrono::milliseconds kNap{200};

  static double flag_now_ns() {
    const std::vector<int> cores = bench::allowed_cores();
    return bench::mean_flag_ns(cores, cores.size());
  }

  bool alike(std::vector<double> flags_ns) const {
    flags_ns.push_back(flag_ns_);
    return !bench::cores_moved(flags_ns);
  }

  [[noreturn]] void refuse() const {
    throw std::runtime_error(
        fmt::format("a flag took {:.0f} ns from one core to the next at first, but not for {} s "
                    "since: the cores of this machine are moved between caches. Try again",
                    flag_ns_, kMostWait.count()));
  }

  double flag_ns_ = flag_now_ns();
  int runs_apart_ = 0;
};

// Alone, after a barrier, dispatch and combine take a little less or more than in pairs that follow
// each other; those are what counts.
CopySample sample_of(const Shape& shape, const json& measured) {
  const auto median_us = [&](const char* what) {
    return measured.at(what).at("median").get<double>();
  };
  const double out_us = median_us("dispatch_us"), home_us = median_us("combine_us");
  const double each = median_us("pair_us") / (out_us + home_us);
  return {shape.ranks, measured.at("rows"), measured.at("dispatch_bytes"), each * out_us,
          each * home_us};
}

}  // namespace

CopySamples measure_copies() {
  SteadyRuns runs;
  CopySamples found;
  found.samples.resize(kShapes.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const CopySample sample = sample_of(kShapes[i], runs.run(kShapes[i]));
      CopySample& best = found.samples[i];
      if (round == 0 || sample.pair_us() < best.pair_us()) best = sample;
    }
  }
  found.flag_ns = runs.flag_ns();
  found.runs_apart = runs.runs_apart();
  return found;
}

std::string own_program() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw std::runtime_error("cannot find the program that runs");
  path.resize(static_cast<std::size_t>(length));
  return path;
}

json run_bench(const std::string& before, const std::string& words) {
  const std::string command =
      fmt::format("'{0}' {1} bench {2} --json", own_program(), before, words);
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  if (!pipe) throw std::runtime_error("cannot start " + command);
  std::string output;
  std::array<char, 4096> part{};
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe.get()))
    output.append(part.data(), got);
  return bench_object(output);
}

}  // namespace ferry::tools
