// Runs `ferry bench` and fits; see calibrate.h.
#include "calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "plan_expect.h"

namespace ferry::tools {

namespace {

using nlohmann::json;

constexpr int kTerms = 5;  // ranks, rows, bytes in each cache, bytes beyond them
using Terms = std::array<double, kTerms>;

// The solution of the normal equations over the terms that are in use.
Terms solve(const std::vector<Terms>& rows, const std::array<bool, kTerms>& used) {
  std::array<std::array<double, kTerms + 1>, kTerms> equations{};
  for (const Terms& row : rows) {
    for (int i = 0; i < kTerms; ++i) {
      for (int j = 0; j < kTerms; ++j) equations[i][j] += row[i] * row[j];
      equations[i][kTerms] += row[i];  // every row is to be 1
    }
  }
  for (int i = 0; i < kTerms; ++i) {
    if (used[i]) continue;
    for (int j = 0; j < kTerms; ++j) equations[i][j] = equations[j][i] = 0;
    equations[i][i] = 1, equations[i][kTerms] = 0;
  }
  for (int pivot = 0; pivot < kTerms; ++pivot) {
    if (equations[pivot][pivot] == 0) continue;
    for (int i = 0; i < kTerms; ++i) {
      if (i == pivot) continue;
      const double factor = equations[i][pivot] / equations[pivot][pivot];
      for (int j = 0; j <= kTerms; ++j) equations[i][j] -= factor * equations[pivot][j];
    }
  }
  Terms found{};
  for (int i = 0; i < kTerms; ++i)
    found[i] = equations[i][i] == 0 ? 0 : equations[i][kTerms] / equations[i][i];
  return found;
}

struct Shape {
  int ranks, tokens, hidden;
};
// With 8 of 96 experts: rows of 0.8 to 600 MB, short and long ones.
constexpr std::array<Shape, 13> kShapes = {{{2, 8, 3072},
                                            {8, 8, 1536},
                                            {2, 24, 6144},
                                            {4, 24, 3072},
                                            {2, 96, 3072},
                                            {8, 24, 6144},
                                            {4, 160, 3072},
                                            {2, 320, 6144},
                                            {8, 384, 1536},
                                            {4, 384, 6144},
                                            {8, 768, 3072},
                                            {4, 4096, 1536},
                                            {2, 3072, 6144}}};
constexpr int kRounds = 2;  // in which shapes take turns; the better one counts

nlohmann::ordered_json copying_json(const Machine::Copying& cost) {
  return {{"rank_us", cost.rank_us}, {"row_ns", cost.row_ns}, {"gb_s", cost.gb_s}};
}

using Caches = std::array<double, 2>;  // MB

double predicted_us(const CopySample& sample, const Machine::Copying& cost, const Caches& caches) {
  return sample.ranks * cost.rank_us + sample.rows * cost.row_ns / 1e3 +
         cost.bytes_us(sample.bytes, caches);
}

struct Errors {
  double worst = 0, squares = 0;
};
Errors errors_of(const std::vector<CopySample>& samples, const Machine::Copying& cost,
                 const Caches& caches) {
  Errors errors;
  for (const CopySample& sample : samples) {
    const double error = std::abs(predicted_us(sample, cost, caches) / sample.us - 1);
    errors.worst = std::max(errors.worst, error);
    errors.squares += error * error;
  }
  return errors;
}

struct Samples {
  std::vector<CopySample> dispatch, combine;
};

// Rounds of all shapes, so that a slow moment does not fall on one shape alone.
Samples measure() {
  std::vector<std::array<std::vector<double>, 2>> times(kShapes.size());
  Samples samples;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      const Shape& shape = kShapes[i];
      const json measured = run_bench(
          "", fmt::format("--pin --ranks {} --tokens {} --hidden {} --experts 96 --top-k 8",
                          shape.ranks, shape.tokens, shape.hidden));
      times[i][0].push_back(measured.at("dispatch_us").at("median"));
      times[i][1].push_back(measured.at("combine_us").at("median"));
      if (round > 0) continue;
      const double rows = measured.at("rows"), bytes = measured.at("dispatch_bytes");
      samples.dispatch.push_back({shape.ranks, rows, bytes, 0});
      samples.combine.push_back({shape.ranks, rows, bytes, 0});
    }
  }
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    samples.dispatch[i].us = std::ranges::min(times[i][0]);
    samples.combine[i].us = std::ranges::min(times[i][1]);
  }
  return samples;
}

// What the kernel says of caches is all that the host has, which guests share; so the sizes from
// which rows are slower are found with the rates.
Caches fit_caches(const Samples& samples) {
  constexpr double kLeast = 1, kMost = 200, kStep = 1.2;  // MB
  Caches best = {};
  double least = std::numeric_limits<double>::infinity();
  for (double near = kLeast; near < kMost; near *= kStep) {
    for (double far = near * kStep; far < kMost; far *= kStep) {
      double squares = 0;
      for (const auto* const half : {&samples.dispatch, &samples.combine})
        squares += errors_of(*half, fit_copying(*half, {near, far}), {near, far}).squares;
      if (squares < least) least = squares, best = {near, far};
    }
  }
  return best;
}

}  // namespace

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

void write_machine(const std::string& file, const nlohmann::ordered_json& machine) {
  std::ofstream written(file);
  written << machine.dump(2) << '\n';
  if (!written.flush()) throw std::runtime_error(fmt::format("cannot write '{}'", file));
}

Machine::Copying fit_copying(const std::vector<CopySample>& samples, const Caches& caches) {
  if (samples.size() < kTerms)
    throw std::invalid_argument(fmt::format("{} samples, at least {}", samples.size(), kTerms));
  std::vector<Terms> rows;
  std::array<bool, kTerms> used{};
  for (const auto& [ranks, num_rows, bytes, us] : samples) {
    const double near = std::min(bytes, caches[0] * 1e6);
    const double far = std::min(bytes, caches[1] * 1e6) - near;
    rows.push_back({ranks / us, num_rows / us, near / us, far / us, (bytes - near - far) / us});
    for (int i = 0; i < kTerms; ++i) used[i] = used[i] || rows.back()[i] > 0;
  }
  Terms found = solve(rows, used);
  while (std::ranges::min(found) < 0) {
    used[std::ranges::min_element(found) - found.begin()] = false;
    found = solve(rows, used);
  }
  // A rate that nothing limits, where bytes take no time.
  constexpr double kLeast = 1e-6;
  const auto rate = [](double us_per_byte) { return 1 / std::max(us_per_byte * 1e3, 1e-6); };
  return {.rank_us = std::max(found[0], kLeast),
          .row_ns = std::max(found[1] * 1e3, kLeast),
          .gb_s = {rate(found[2]), rate(found[3]), rate(found[4])}};
}

std::string calibrate(const std::string& file) {
  const Samples samples = measure();
  const Caches caches = fit_caches(samples);
  const Machine::Copying out = fit_copying(samples.dispatch, caches),
                         home = fit_copying(samples.combine, caches);
  nlohmann::ordered_json machine = {
      {"tree", "rank:8"},
      {"name", "here"},
      {"host",
       {{"dispatch", copying_json(out)},
        {"combine", copying_json(home)},
        {"caches_mb", caches},
        {"source", fmt::format("fitted: {} runs of ferry bench on this machine",
                               kRounds * kShapes.size())}}}};
  write_machine(file, machine);
  const auto text = [&](const char* what, const Machine::Copying& cost, const auto& of) {
    return fmt::format(
        "{} {:.3g} us a rank, {:.3g} ns a row, {:.3g}, {:.3g} and {:.3g} GB/s (worst "
        "of the fit {:.0f} %)",
        what, cost.rank_us, cost.row_ns, cost.gb_s[0], cost.gb_s[1], cost.gb_s[2],
        100 * errors_of(of, cost, caches).worst);
  };
  return fmt::format("{}: up to {:.3g} MB, {:.3g} MB and beyond: {}; {}\n", file, caches[0],
                     caches[1], text("dispatch", out, samples.dispatch),
                     text("combine", home, samples.combine));
}

}  // namespace ferry::tools
