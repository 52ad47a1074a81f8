// Reads the texts of a routing; see plan_routing.h.
#include "plan_routing.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/routing.h"

namespace ferry::tools {

void set_routing(const std::string& text, std::uint64_t seed, Workload& workload) {
  if (text == "uniform") return;
  if (text.starts_with("limited:")) {
    int chosen = 0, groups = 0, end = 0;
    const std::string numbers = text.substr(8);
    if (std::sscanf(numbers.c_str(), "%d/%d%n", &chosen, &groups, &end) != 2 ||
        end != std::ssize(numbers))
      throw std::invalid_argument(fmt::format("--routing: '{}' is not limited:M/G", text));
    workload.groups = groups, workload.groups_chosen = chosen;
    return;
  }
  if (text.ends_with(".json") && !text.starts_with("load:")) {
    std::ifstream file(text);
    if (!file) throw std::invalid_argument(fmt::format("cannot open '{}'", text));
    workload.loads = nlohmann::json::parse(file).get<std::vector<double>>();
    return;
  }
  const bench::RoutingSpec spec = bench::parse_routing(text);
  if (spec.kind == bench::RoutingSpec::Kind::kGroups)
    throw std::invalid_argument(
        fmt::format("--routing: '{}' is planned as limited:M/G, M of G groups", text));
  const ExchangeConfig& shape = workload.exchange;
  workload.loads = bench::expert_shares(spec, shape.num_experts, shape.max_tokens, seed);
}

}  // namespace ferry::tools
