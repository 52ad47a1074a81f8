// Writes the JSON form of plans; see json.h.
#include "tools/plan/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/graph.h"

namespace ferry::tools {

namespace {

using nlohmann::ordered_json;

ordered_json spans_json(const std::vector<Span>& spans) {
  ordered_json list = ordered_json::array();
  for (const Span& span : spans)
    list.push_back({{"what", span.what},
                    {"start_us", span.start_us},
                    {"end_us", span.end_us},
                    {"bytes", span.bytes},
                    {"count", span.count}});
  return list;
}

ordered_json prediction_json(const Prediction& prediction) {
  ordered_json loads = ordered_json::array(), doubled = ordered_json::object();
  for (const Load& load : prediction.loads) {
    loads.push_back({{"name", load.name},
                     {"gb_s", load.gb_s},
                     {"source", load.source},
                     {"instances", load.instances},
                     {"dispatch_bytes", load.dispatch_bytes},
                     {"combine_bytes", load.combine_bytes},
                     {"dispatch_us", load.dispatch_us},
                     {"combine_us", load.combine_us}});
  }
  for (const auto& [name, us] : prediction.doubled) doubled[name] = us;
  return {{"strategy", prediction.strategy},
          {"dispatch_us", prediction.dispatch_us},
          {"combine_us", prediction.combine_us},
          {"pair_us", prediction.pair_us()},
          {"at_most_us", prediction.at_most_us},
          {"bound_us",
           {{"dispatch", prediction.dispatch_bound_us}, {"combine", prediction.combine_bound_us}}},
          {"simulated", prediction.chunks > 0},
          {"chunks", prediction.chunks},
          {"received_bytes", prediction.received_bytes},
          {"staged_bytes", prediction.staged_bytes},
          {"limited_by", prediction.limited_by},
          {"loads", std::move(loads)},
          {"pair_us_if_doubled", std::move(doubled)},
          {"step",
           {{"gathered_bytes", prediction.step.gathered_bytes},
            {"gather_us", prediction.step.gather_us},
            {"layer_us", prediction.step.layer_us},
            {"paired_us", prediction.step.paired_us},
            {"step_us", prediction.step.step_us},
            {"paired_step_us", prediction.step.paired_step_us}}},
          {"dispatch_tasks", spans_json(prediction.dispatch_spans)},
          {"combine_tasks", spans_json(prediction.combine_spans)}};
}

}  // namespace

ordered_json plan_json(const PlannedPoint& point) {
  const ExchangeConfig& exchange = point.workload.exchange;
  const Workload::Parallel& parallel = point.workload.parallel;
  ordered_json predictions = ordered_json::array();
  for (const Prediction& prediction : point.plan.predictions)
    predictions.push_back(prediction_json(prediction));
  return {{"machine", {{"name", point.machine.name}, {"text", point.machine.to_text()}}},
          {"ranks", point.machine.tree.num_ranks()},
          {"tokens", exchange.max_tokens},
          {"hidden", exchange.hidden},
          {"top_k", exchange.top_k},
          {"experts", exchange.num_experts},
          {"dtype", data_type_name(exchange.dtype)},
          {"wire", wire_name(exchange.wire)},
          {"groups", point.workload.groups},
          {"groups_chosen", point.workload.groups_chosen},
          {"chunks", point.chunks},
          {"parallel",
           {{"tp", parallel.tp},
            {"pp", parallel.pp},
            {"layers", parallel.layers},
            {"micro_batches", parallel.micro_batches},
            {"compute_us", parallel.compute_us}}},
          {"predictions", std::move(predictions)},
          {"window_bytes",
           {{"expected", point.plan.window.expected}, {"worst", point.plan.window.worst}}},
          {"sentence", point.plan.sentence},
          {"notes", point.plan.notes}};
}

ordered_json links_json(const Machine& machine) {
  const internal::Graph graph(machine);
  ordered_json kinds = ordered_json::array();
  for (int kind = 0; kind < std::ssize(machine.links); ++kind) {
    const Machine::Link& link = machine.links[kind];
    ordered_json pairs = ordered_json::array();
    for (int rank = 0; rank < graph.num_ranks(); ++rank) {
      for (const int other : graph.neighbours(rank, kind))
        if (rank < other) pairs.push_back({rank, other});
    }
    kinds.push_back({{"name", link.name},
                     {"load", link.port.empty() ? link.name : link.port},
                     {"pairs", std::move(pairs)}});
  }
  return kinds;
}

}  // namespace ferry::tools
