// Parses the text of a routing; see routing.h.
#include "tools/plan/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <vector>

#include "base/names.h"
#include "tools/bench/routing.h"
#include "tools/json_limits.h"
#include "tools/plan/machine_json.h"
#include "tools/refuse.h"

namespace ferry::tools {

namespace {

std::vector<double> loads_of(const std::string& file) try {
  const std::string text = read_file(file);
  check_json(fmt::format("--routing: '{}'", file), text);
  return nlohmann::json::parse(text).get<std::vector<double>>();
} catch (const nlohmann::json::exception& error) {
  refuse("--routing: '{}' is no list of loads: {}", file, reason_of(error));
}

}  // namespace

void set_routing(const std::string& text, std::uint64_t seed, Workload& workload) {
  if (text == "uniform") return;
  if (text.starts_with("limited:")) {
    int chosen = 0, groups = 0, end = 0;
    const std::string numbers = text.substr(8);
    if (std::sscanf(numbers.c_str(), "%d/%d%n", &chosen, &groups, &end) != 2 ||
        end != std::ssize(numbers))
      refuse("--routing: '{}' is not limited:M/G", text);
    workload.groups = groups, workload.groups_chosen = chosen;
    return;
  }
  if (text.ends_with(".json") && !text.starts_with("load:")) {
    workload.loads = loads_of(text);
    if (std::ssize(workload.loads) != workload.exchange.num_experts)
      refuse("--routing: '{}' has {} loads for {} experts", text, workload.loads.size(),
             workload.exchange.num_experts);
    return;
  }
  if (text.starts_with("groups:"))
    refuse("--routing: '{}' is planned as limited:M/G, M of G groups", text);
  const std::string_view name = std::string_view(text).substr(0, text.find(':'));
  constexpr std::array kNames = {"uniform", "limited", "zipf", "real", "load", "ids"};
  if (std::ranges::count(kNames, name) == 0)
    refuse(
        "--routing: '{}' is none of uniform, limited:M/G, zipf:S, real, load:FILE[:LAYER], "
        "ids:FILE[:LAYER], FILE.json{}",
        text, internal::nearest_name(name, {kNames.begin(), kNames.end()}));
  const bench::RoutingSpec spec = bench::parse_routing(text);
  const ExchangeConfig& shape = workload.exchange;
  if (spec.kind == bench::RoutingSpec::Kind::kIds) {
    workload.ids = bench::ids_of(spec, shape.top_k, shape.num_experts);
    return;
  }
  workload.loads = bench::expert_shares(spec, shape.num_experts, shape.max_tokens, seed);
}

}  // namespace ferry::tools
