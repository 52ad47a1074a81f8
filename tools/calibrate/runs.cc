// Runs `ferry bench`; see runs.h.
#include "tools/calibrate/runs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tools/bench/cores.h"
#include "tools/bench/flag_time.h"
#include "tools/plan/expect.h"
#include "traffic/traffic.h"

namespace ferry::tools {
namespace {

using nlohmann::json;

constexpr int kExperts = 96, kTopK = 8;

struct Shape {
  int ranks, tokens, hidden;
};
// The shapes of the calibration, with kTopK of kExperts. Their rows take 0.8 to 600 MB and are
// short or long. There are more shapes at the sizes at which caches end.
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
// The most rounds, in all places of the cores together, for each round that one place needs.
constexpr int kMostRounds = 5;

json run_shape(const Shape& shape) {
  return run_bench("",
                   fmt::format("--pin --ranks {} --tokens {} --hidden {} --experts {} --top-k {}",
                               shape.ranks, shape.tokens, shape.hidden, kExperts, kTopK));
}

// The number of tokens of all ranks. A token counts once for each rank that receives it.
double tokens_of(const Shape& shape) {
  const internal::Traffic traffic = internal::traffic_of(
      {.max_tokens = shape.tokens, .hidden = shape.hidden, .num_experts = kExperts, .top_k = kTopK},
      shape.ranks);
  return shape.ranks * internal::touch_probability(traffic, kExperts / shape.ranks) * shape.ranks *
         shape.tokens;
}

double flag_now_ns() {
  const std::vector<int> cores = bench::allowed_cores();
  return bench::mean_flag_ns(cores, cores.size());
}

// Makes a sample from a run. The time of the pair is that of the fastest batch, because a plan
// describes an idle machine. It is split into dispatch and combine in the ratio of their medians,
// for which each is timed alone after a barrier.
CopySample sample_of(const Shape& shape, const json& measured) {
  const auto median_us = [&](const char* what) {
    return measured.at(what).at("median").get<double>();
  };
  const double out_us = median_us("dispatch_us"), home_us = median_us("combine_us");
  const double each = measured.at("pair_us").at("min").get<double>() / (out_us + home_us);
  return {shape.ranks, tokens_of(shape), measured.at("dispatch_bytes"), each * out_us,
          each * home_us};
}

}  // namespace

std::size_t CopyRuns::Place::rarest() const {
  return std::ranges::min_element(runs, {}, &std::vector<CopySample>::size) - runs.begin();
}

// Returns the place of a run, and adds it if it is new.
CopyRuns::Place& CopyRuns::place(double flag_ns) {
  const auto known = std::ranges::find_if(places_, [&](const Place& place) {
    return !bench::cores_moved(std::array{place.flag_ns, flag_ns});
  });
  if (known != places_.end()) return *known;
  places_.push_back({flag_ns, std::vector<std::vector<CopySample>>(num_shapes_)});
  return places_.back();
}

std::size_t CopyRuns::rarest_shape(double flag_ns) { return place(flag_ns).rarest(); }

void CopyRuns::add(std::size_t shape, std::span<const double> flags_ns, const CopySample& sample) {
  if (bench::cores_moved(flags_ns)) {
    ++runs_between_;
  } else {
    place(flags_ns.empty() ? 0 : flags_ns.front()).runs[shape].push_back(sample);
  }
}

bool CopyRuns::enough() const {
  return std::ranges::any_of(places_,
                             [&](const Place& place) { return place.fewest() >= rounds_; });
}

Calibration CopyRuns::best() const {
  std::vector<Place> places = places_;
  const int fewest = (rounds_ + 1) / 2;
  std::erase_if(places, [&](const Place& place) { return place.fewest() < fewest; });
  if (places.empty())
    throw std::runtime_error(
        fmt::format("the cores of this machine are moved between caches: in no place was each of "
                    "{} shapes run {} times, and {} runs were between places. Try again",
                    num_shapes_, fewest, runs_between_));
  std::ranges::stable_sort(places, std::ranges::greater(), &Place::fewest);
  Calibration found{{}, runs_between_};
  for (const Place& place : places) {
    found.places.push_back({place.flag_ns, static_cast<int>(bench::allowed_cores().size()), {}});
    for (const std::vector<CopySample>& runs : place.runs)
      found.places.back().shapes.push_back(
          *std::ranges::min_element(runs, {}, &CopySample::pair_us));
  }
  return found;
}

Calibration measure_copies(int rounds) {
  CopyRuns runs(kShapes.size(), rounds);
  const std::size_t most = kMostRounds * rounds * kShapes.size();
  for (std::size_t run = 0; run < most && !runs.enough(); ++run) {
    const std::size_t shape = runs.rarest_shape(flag_now_ns());
    const json measured = run_shape(kShapes[shape]);
    runs.add(shape, measured.at("flags_ns").get<std::vector<double>>(),
             sample_of(kShapes[shape], measured));
  }
  return runs.best();
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
