// Parses the text of a sweep; see sweep.h.
#include "tools/plan/sweep.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

#include "base/names.h"
#include "ferry/topology.h"
#include "tools/refuse.h"

namespace ferry::tools {

namespace {

constexpr std::int64_t kMost = std::numeric_limits<int>::max();

// An option that can be swept, with its least and largest value. `set` writes a value to the
// request.
struct Key {
  std::string_view name;
  std::int64_t least, most;
  void (*set)(PlanRequest& request, std::int64_t value);
};

constexpr std::array kKeys = {
    Key{"ep", 1, Topology::kMostRanks,
        [](PlanRequest& r, std::int64_t value) { r.ep = static_cast<int>(value); }},
    Key{"tokens", 0, 1 << 24,
        [](PlanRequest& r, std::int64_t value) { r.workload.exchange.max_tokens = value; }},
    Key{"hidden", 1, 1 << 20,
        [](PlanRequest& r, std::int64_t value) { r.workload.exchange.hidden = value; }},
    Key{"top-k", 1, 32,
        [](PlanRequest& r, std::int64_t value) {
          r.workload.exchange.top_k = static_cast<int>(value);
        }},
    Key{"experts", 1, 65536,
        [](PlanRequest& r, std::int64_t value) {
          r.workload.exchange.num_experts = static_cast<int>(value);
        }},
    Key{"chunks", 1, 4096,
        [](PlanRequest& r, std::int64_t value) { r.options.chunks = static_cast<int>(value); }},
    Key{"tp", 1, 1024,
        [](PlanRequest& r, std::int64_t value) {
          r.workload.parallel.tp = static_cast<int>(value);
        }},
    Key{"pp", 1, 1024,
        [](PlanRequest& r, std::int64_t value) {
          r.workload.parallel.pp = static_cast<int>(value);
        }},
    Key{"micro-batches", 1, 1 << 20,
        [](PlanRequest& r, std::int64_t value) {
          r.workload.parallel.micro_batches = static_cast<int>(value);
        }},
    Key{"compute-us", 0, kMost, [](PlanRequest& r, std::int64_t value) {
          r.workload.parallel.compute_us = static_cast<double>(value);
        }}};

const Key& find_key(const std::string& sweep) {
  const std::size_t equals = sweep.find('=');
  const std::string_view name = std::string_view(sweep).substr(0, equals);
  const auto* const found = std::ranges::find(kKeys, name, &Key::name);
  if (found != kKeys.end() && equals != sweep.npos) return *found;
  std::vector<std::string> names;
  for (const Key& key : kKeys) names.emplace_back(key.name);
  refuse("--sweep: '{}' is not of the form ep=16,32,..{}", sweep,
         internal::nearest_name(name, names));
}

}  // namespace

std::string swept_option(const std::string& sweep) {
  return "--" + std::string(find_key(sweep).name);
}

std::vector<SweptPoint> swept(const PlanRequest& request, const std::string& sweep) {
  if (sweep.empty()) return {{.text = "", .request = request}};
  const Key& key = find_key(sweep);
  std::vector<SweptPoint> points;
  std::istringstream numbers(sweep.substr(key.name.size() + 1));
  for (std::string number; std::getline(numbers, number, ',');) {
    std::int64_t value = 0;
    if (!CLI::detail::lexical_cast(number, value) || value < key.least || value > key.most)
      refuse("--sweep: {} '{}' is not a number from {} to {}", key.name, number, key.least,
             key.most);
    SweptPoint point{.text = fmt::format("{}={}", key.name, value), .request = request};
    key.set(point.request, value);
    points.push_back(std::move(point));
  }
  if (points.empty()) refuse("--sweep: '{}' has no number", sweep);
  return points;
}

}  // namespace ferry::tools
