// Runs `ferry bench` and fits; see calibrate.h.
#include "calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "plan_expect.h"
#include "topology/caches.h"

namespace ferry::tools {

namespace {

using nlohmann::json;

constexpr int kTerms = 4;  // ranks, rows, bytes in the cache, bytes beyond it
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
// With 6 of 96 experts; small and large, in the cache and beyond it.
constexpr std::array<Shape, 10> kShapes = {{{2, 8, 3072},
                                            {2, 96, 1536},
                                            {2, 384, 3072},
                                            {2, 1024, 6144},
                                            {4, 24, 3072},
                                            {4, 192, 6144},
                                            {4, 1536, 3072},
                                            {8, 8, 1536},
                                            {8, 96, 3072},
                                            {8, 768, 6144}}};

std::string own_program() {
  std::string path(4096, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw std::runtime_error("cannot find the program that runs");
  path.resize(static_cast<std::size_t>(length));
  return path;
}

json bench(const std::string& program, const Shape& shape) {
  const std::string command = fmt::format(
      "'{}' bench --mode threads --ranks {} --tokens {} --hidden {} --experts 96 --top-k 6 --json",
      program, shape.ranks, shape.tokens, shape.hidden);
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  if (!pipe) throw std::runtime_error("cannot start " + command);
  std::string output;
  std::array<char, 4096> part{};
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe.get()))
    output.append(part.data(), got);
  return bench_object(output);
}

nlohmann::ordered_json copying_json(const Machine::Copying& cost) {
  return {{"rank_us", cost.rank_us},
          {"row_ns", cost.row_ns},
          {"gb_s", cost.gb_s},
          {"beyond_gb_s", cost.beyond_gb_s}};
}

double worst_error(const std::vector<CopySample>& samples, const Machine::Copying& cost,
                   double cache_mb) {
  double worst = 0;
  for (const CopySample& sample : samples) {
    const double rate = sample.bytes > cache_mb * 1e6 ? cost.beyond_gb_s : cost.gb_s;
    const double us =
        sample.ranks * cost.rank_us + sample.rows * cost.row_ns / 1e3 + sample.bytes / rate / 1e3;
    worst = std::max(worst, std::abs(us / sample.us - 1));
  }
  return worst;
}

}  // namespace

Machine::Copying fit_copying(const std::vector<CopySample>& samples, double cache_mb) {
  if (samples.size() < kTerms)
    throw std::invalid_argument(fmt::format("{} samples, at least {}", samples.size(), kTerms));
  std::vector<Terms> rows;
  std::array<bool, kTerms> used{};
  for (const auto& [ranks, num_rows, bytes, us] : samples) {
    const bool beyond = bytes > cache_mb * 1e6;
    rows.push_back({ranks / us, num_rows / us, beyond ? 0 : bytes / us, beyond ? bytes / us : 0});
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
  const double beyond = found[3] > 0 ? found[3] : found[2];
  return {.rank_us = std::max(found[0], kLeast),
          .row_ns = std::max(found[1] * 1e3, kLeast),
          .gb_s = rate(found[2] > 0 ? found[2] : beyond),
          .beyond_gb_s = rate(beyond)};
}

std::string calibrate(const std::string& file) {
  const std::string program = own_program();
  const double cache_mb = static_cast<double>(internal::last_level_cache_bytes()) / 1e6;
  std::vector<CopySample> dispatch, combine;
  for (const Shape& shape : kShapes) {
    const json measured = bench(program, shape);
    const double rows = measured.at("rows"), bytes = measured.at("dispatch_bytes");
    dispatch.push_back({shape.ranks, rows, bytes, measured.at("dispatch_us").at("median")});
    combine.push_back({shape.ranks, rows, bytes, measured.at("combine_us").at("median")});
  }
  const Machine::Copying out = fit_copying(dispatch, cache_mb),
                         home = fit_copying(combine, cache_mb);
  nlohmann::ordered_json machine = {
      {"tree", "rank:8"},
      {"name", "here"},
      {"host",
       {{"dispatch", copying_json(out)},
        {"combine", copying_json(home)},
        {"cache_mb", cache_mb},
        {"source",
         fmt::format("fitted: {} runs of ferry bench on this machine", kShapes.size())}}}};
  std::ofstream written(file);
  written << machine.dump(2) << '\n';
  if (!written.flush()) throw std::runtime_error(fmt::format("cannot write '{}'", file));
  return fmt::format(
      "{}: dispatch {:.3g} us a rank, {:.3g} ns a row, {:.3g} GB/s, {:.3g} beyond {:.3g} MB "
      "(worst of the fit {:.0f} %); combine {:.3g} us, {:.3g} ns, {:.3g} and {:.3g} GB/s "
      "({:.0f} %)\n",
      file, out.rank_us, out.row_ns, out.gb_s, out.beyond_gb_s, cache_mb,
      100 * worst_error(dispatch, out, cache_mb), home.rank_us, home.row_ns, home.gb_s,
      home.beyond_gb_s, 100 * worst_error(combine, home, cache_mb));
}

}  // namespace ferry::tools
