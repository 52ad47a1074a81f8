#include "plan/choose.h"

#include <fmt/format.h>

#include "plan/best.h"
#include "plan/predict.h"
#include "plan/strategies.h"

namespace ferry::internal {

namespace {

Algorithm algorithm_of(const std::string& name) {
  for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kAllgather})
    if (name == algorithm_name(algorithm)) return algorithm;
  return Algorithm::kFullmesh;
}

}  // namespace

AlgorithmChoice choose_algorithm(const Topology& topology, const Traffic& traffic) {
  if (topology.num_nodes() == 1) return {Algorithm::kFullmesh, "one node: nothing crosses"};
  Machine machine;
  machine.tree = topology;
  const Graph graph(machine);
  const Classes classes = each_alone(topology.num_ranks());
  const Routing routing(traffic);
  const BuildInput input{
      .graph = graph, .classes = classes, .traffic = traffic, .routing = routing};
  std::vector<Prediction> predictions;
  for (const Strategy& strategy : strategies_of(graph))
    predictions.push_back(predict(strategy, build(input, strategy), {.doubled = false}));
  put_best_first(predictions);
  return {algorithm_of(predictions.front().strategy),
          fmt::format("{} nodes, routing uniform: {}", topology.num_nodes(), why(predictions))};
}

const char* algorithm_name(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::kAuto: return "auto";
    case Algorithm::kFullmesh: return "fullmesh";
    case Algorithm::kHierarchical: return "hierarchical";
    case Algorithm::kAllgather: return "allgather";
  }
  return "unknown";
}

}  // namespace ferry::internal
