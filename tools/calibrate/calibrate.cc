// Runs `ferry bench` and fits the constants of a machine; see calibrate.h.
#include "tools/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "tools/refuse.h"

namespace ferry::tools {

namespace {

using nlohmann::json;

// A dispatch has five unknowns, and so has a combine: the time per rank, per rank without a
// processor, per token, per byte in a cache, and per byte beyond the caches.
constexpr int kHalf = 5, kNumConstants = 2 * kHalf;
using Constants = std::array<double, kNumConstants>;

// One measured time as an equation. Each factor is divided by the measured time, so that with the
// right constants the products add up to 1. `counts` is its fixed weight, and `weight` its weight
// in the next pass of fit().
struct Equation {
  Constants factors = {};
  double counts = 1;
  double weight = counts;

  double sum(const Constants& found) const {
    return std::inner_product(factors.begin(), factors.end(), found.begin(), 0.0);
  }
};

// Solves the normal equations for the constants that are in use.
Constants solve(const std::vector<Equation>& samples, const std::array<bool, kNumConstants>& used) {
  std::array<std::array<double, kNumConstants + 1>, kNumConstants> equations{};
  for (const Equation& sample : samples) {
    for (int i = 0; i < kNumConstants; ++i) {
      const double weighed = sample.weight * sample.factors[i];
      for (int j = 0; j < kNumConstants; ++j) equations[i][j] += weighed * sample.factors[j];
      equations[i][kNumConstants] += weighed;
    }
  }
  for (int i = 0; i < kNumConstants; ++i) {
    if (used[i]) continue;
    for (int j = 0; j < kNumConstants; ++j) equations[i][j] = equations[j][i] = 0;
    equations[i][i] = 1, equations[i][kNumConstants] = 0;
  }
  for (int pivot = 0; pivot < kNumConstants; ++pivot) {
    if (equations[pivot][pivot] == 0) continue;
    for (int i = 0; i < kNumConstants; ++i) {
      if (i == pivot) continue;
      const double factor = equations[i][pivot] / equations[pivot][pivot];
      for (int j = 0; j <= kNumConstants; ++j) equations[i][j] -= factor * equations[pivot][j];
    }
  }
  Constants found{};
  for (int i = 0; i < kNumConstants; ++i)
    found[i] = equations[i][i] == 0 ? 0 : equations[i][kNumConstants] / equations[i][i];
  return found;
}

// Solves the normal equations such that no constant is below 0.
Constants solve_positive(const std::vector<Equation>& samples) {
  std::array<bool, kNumConstants> used{};
  for (const Equation& sample : samples)
    for (int i = 0; i < kNumConstants; ++i) used[i] = used[i] || sample.factors[i] > 0;
  Constants found = solve(samples, used);
  while (std::ranges::min(found) < 0) {
    used[std::ranges::min_element(found) - found.begin()] = false;
    found = solve(samples, used);
  }
  return found;
}

nlohmann::ordered_json copying_json(const Machine::Copying& cost) {
  return {{"rank_us", cost.rank_us}, {"token_ns", cost.token_ns}, {"gb_s", cost.gb_s}};
}

std::string copying_text(const char* what, const Machine::Copying& cost) {
  return fmt::format(
      "{} {:.3g} us a rank, {:.3g} more without a processor, {:.3g} ns a token, {:.3g} and {:.3g} "
      "GB/s",
      what, cost.rank_us, cost.waiting_us, cost.token_ns, cost.gb_s[0], cost.gb_s[1]);
}

using Caches = Machine::Caches;

// The cost of an error up to this size grows with its square, and that of a larger one only
// linearly. So one disturbed run changes little.
constexpr double kSmallError = 0.05;
// The weight of a dispatch or a combine. A pair has the weight 1, because predictions are of pairs.
constexpr double kWeightOfHalf = 0.2;

// Makes three equations from each sample: for its pair, its dispatch and its combine.
std::vector<Equation> equations_of(const CopySamples& samples, const Caches& caches) {
  std::vector<Equation> equations;
  for (const CopySample& sample : samples.shapes) {
    const double beyond = sample.bytes * caches.part_beyond(sample.bytes, sample.ranks);
    const int waiting = std::max(sample.ranks - samples.processors, 0);
    const std::array<double, kHalf> half = {static_cast<double>(sample.ranks),
                                            static_cast<double>(waiting), sample.tokens,
                                            sample.bytes - beyond, beyond};
    const auto add = [&](double out_us, double home_us, double weight) {
      Equation equation{.counts = weight};
      for (int i = 0; i < kHalf; ++i) {
        equation.factors[i] = out_us > 0 ? half[i] / out_us : 0;
        equation.factors[kHalf + i] = home_us > 0 ? half[i] / home_us : 0;
      }
      equations.push_back(equation);
    };
    add(sample.pair_us(), sample.pair_us(), 1);
    add(sample.dispatch_us, 0, kWeightOfHalf);
    add(0, sample.combine_us, kWeightOfHalf);
  }
  return equations;
}

struct Solution {
  Constants constants = {};
  double cost = 0;  // the sum of the errors, with their weights
};

// Finds the constants by least squares in several passes. Each pass weighs a measured time by its
// error in the pass before.
Solution fit(std::vector<Equation> equations) {
  constexpr int kPasses = 12;
  // The fit ends when a pass changes the cost by less than this factor.
  constexpr double kSame = 1e-3;
  Solution found;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double before = found.cost;
    found = {solve_positive(equations), 0};
    for (Equation& equation : equations) {
      const double error = std::abs(equation.sum(found.constants) - 1);
      equation.weight = equation.counts / std::max(error, kSmallError);
      found.cost += equation.counts * (error < kSmallError ? error * error / kSmallError / 2
                                                           : error - kSmallError / 2);
    }
    if (std::abs(found.cost - before) < kSame * found.cost) break;
  }
  return found;
}

Machine::Copying copying_of(const Constants& found, int first) {
  constexpr double kLeast = 1e-6;  // replaces a time of zero
  const auto rate = [&](double us_per_byte) { return 1 / std::max(us_per_byte * 1e3, kLeast); };
  return {.rank_us = std::max(found[first], kLeast),
          .waiting_us = std::max(found[first + 1], kLeast),
          .token_ns = std::max(found[first + 2] * 1e3, kLeast),
          .gb_s = {rate(found[first + 3]), rate(found[first + 4])}};
}

struct Candidate {
  Caches caches;
  double cost = 0;  // the cost of the best fit with these caches
};

// Returns the mean of the cache sizes that fit about equally well, weighted by the quality of the
// fit. This mean varies less between calibrations than the best size.
Caches mean_of(const std::vector<Candidate>& candidates) {
  // A fit is about as good as the best one if its cost is larger by at most this part.
  constexpr double kEqual = 0.05;
  constexpr double kNoCost = 1e-9;
  const double least = std::max(std::ranges::min(candidates, {}, &Candidate::cost).cost, kNoCost);
  double weights = 0, rank_mb = 0;
  std::array<double, 2> log_mb = {};
  for (const auto& [caches, cost] : candidates) {
    const double weight = std::exp((least - cost) / (kEqual * least));
    weights += weight;
    rank_mb += weight * caches.rank_mb;
    for (int i = 0; i < 2; ++i) log_mb[i] += weight * std::log(caches.mb[i]);
  }
  return {{std::exp(log_mb[0] / weights), std::exp(log_mb[1] / weights)}, rank_mb / weights};
}

// Fits the cache sizes beyond which rows are slower, together with the rates. The sizes that the
// kernel reports cannot be used: they are those of the whole host, which its guests share.
Caches fit_caches(const CopySamples& samples) {
  constexpr double kLeast = 1, kMost = 200, kStep = 1.15;  // MB
  std::vector<Candidate> candidates;
  for (double all = kLeast; all < kMost; all *= kStep) {
    for (double none = all * kStep; none < kMost; none *= kStep) {
      for (const double rank : {0.0, 0.25, 0.5, 0.75}) {
        const Caches caches = {{all, none}, rank};
        candidates.push_back({caches, fit(equations_of(samples, caches)).cost});
      }
    }
  }
  return mean_of(candidates);
}

double predicted_us(const CopySample& sample, const Machine::Host& host) {
  const double beyond = host.caches.part_beyond(sample.bytes, sample.ranks);
  double us = 0;
  for (const Machine::Copying& cost : {host.dispatch, host.combine})
    us += cost.ranks_us(sample.ranks, host.processors) +
          cost.rows_us(sample.tokens, sample.bytes, beyond);
  return us;
}

double worst_error(const CopySamples& samples, const Machine::Host& host) {
  double worst = 0;
  for (const CopySample& sample : samples.shapes)
    worst = std::max(worst, std::abs(predicted_us(sample, host) / sample.pair_us() - 1));
  return worst;
}

// Adds the time of a flag to a file name: "here.json" and 133 ns give "here-133ns.json".
std::string other_file(const std::string& file, double flag_ns) {
  std::filesystem::path path(file);
  const std::string name =
      fmt::format("{}-{:.0f}ns{}", path.stem().string(), flag_ns, path.extension().string());
  return path.replace_filename(name).string();
}

// Fits the samples of one place of the cores and writes its machine. Returns a text about the
// result for people.
std::string calibrated(const std::string& file, const CopySamples& samples) {
  const Machine::Host host = fit_host(samples);
  nlohmann::ordered_json machine = {
      {"tree", "rank:8"},
      {"name", "here"},
      {"host",
       {{"dispatch", copying_json(host.dispatch)},
        {"combine", copying_json(host.combine)},
        {"processors", host.processors},
        {"waiting_us", {host.dispatch.waiting_us, host.combine.waiting_us}},
        {"caches_mb", host.caches.mb},
        {"source", "fitted: runs of ferry bench on this machine"}}}};
  if (host.caches.rank_mb > 0) machine["host"]["rank_mb"] = host.caches.rank_mb;
  if (samples.flag_ns > 0) machine["host"]["flag_ns"] = samples.flag_ns;
  write_machine(file, machine);
  return fmt::format(
      "{}: in a cache up to {:.3g} MB, in none from {:.3g}, {:.3g} of them for each rank; {}; {}; "
      "worst of the fit {:.0f} %{}\n",
      file, host.caches.mb[0], host.caches.mb[1], host.caches.rank_mb,
      copying_text("dispatch", host.dispatch), copying_text("combine", host.combine),
      100 * worst_error(samples, host),
      samples.flag_ns > 0
          ? fmt::format("; a flag from one core to the next {:.0f} ns", samples.flag_ns)
          : "");
}

}  // namespace

void write_machine(const std::string& file, const nlohmann::ordered_json& machine) {
  std::ofstream written(file);
  written << machine.dump(2) << '\n';
  if (!written.flush()) throw std::runtime_error(fmt::format("cannot write '{}'", file));
}

Machine::Host fit_host(const CopySamples& samples) {
  if (samples.shapes.size() < kNumConstants)
    refuse("{} samples, at least {}", samples.shapes.size(), kNumConstants);
  Machine::Host host;
  host.processors = samples.processors;
  host.caches = fit_caches(samples);
  const Constants found = fit(equations_of(samples, host.caches)).constants;
  host.dispatch = copying_of(found, 0);
  host.combine = copying_of(found, kHalf);
  return host;
}

std::string calibrate(const std::string& file, int rounds) {
  const Calibration measured = measure_copies(rounds);
  std::string text;
  for (const CopySamples& place : measured.places)
    text += calibrated(&place == measured.places.data() ? file : other_file(file, place.flag_ns),
                       place);
  if (measured.runs_between > 0)
    text += fmt::format("{} runs do not count: the cores were moved meanwhile\n",
                        measured.runs_between);
  return text;
}

}  // namespace ferry::tools
