// plan(): computes the bytes, memory, bounds and times of every strategy of a machine.
#include "ferry/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "ferry/status.h"
#include "plan/build.h"
#include "plan/declared.h"
#include "plan/hash.h"
#include "plan/parallel.h"
#include "plan/predict.h"
#include "plan/strategies.h"
#include "plan/summed.h"
#include "traffic/ranking.h"

namespace ferry {

namespace {

using internal::Classes;
using internal::Forest;
using internal::Graph;
using internal::SchedulePair;
using internal::Strategy;

std::size_t num_tasks(const SchedulePair& pair) {
  return std::max(pair.dispatch.tasks.size(), pair.combine.tasks.size());
}

// The machine, the workload, and the classes of its ranks.
class Planner {
 public:
  Planner(const Machine& machine, const Workload& workload, const PlanOptions& options)
      : options_(options),
        graph_(machine),
        workload_(workload),
        traffic_(internal::share_of_tp(internal::traffic_of(workload.exchange, graph_.num_ranks()),
                                       workload.parallel.tp)),
        routing_(workload, traffic_.rank_experts),
        classes_(classes(options.by_classes)),
        gather_(internal::gather_of(input(), workload.parallel.tp)) {}

  Prediction predict(const Strategy& strategy) {
    std::optional<SchedulePair> pair = build(strategy);
    if (!pair) pair = build_summed(strategy);
    Prediction prediction = internal::predict(strategy.name, *pair, options_);
    prediction.step =
        internal::step_of(prediction, gather_, workload_, graph_.machine().contention);
    return prediction;
  }

  const PlanOptions& options() const { return options_; }
  std::int64_t tokens() const { return traffic_.tokens; }  // of one rank; with TP, of its share
  const Graph& graph() const { return graph_; }
  const Classes& used_classes() const { return classes_; }
  // The links without a rate whose port limits only bytes that leave a group, and which also join
  // ranks inside a group. Bytes inside the group are then unlimited.
  std::vector<std::string> unlimited_inside() const {
    std::vector<std::string> names;
    const std::vector<bool> used = used_kinds();
    for (int kind = 0; kind < graph_.num_kinds(); ++kind) {
      const Machine::Link& link = graph_.link(kind);
      const bool inside = graph_.outermost(kind) > graph_.outermost(graph_.link_index(kind));
      if (used[kind] && inside && link.gb_s <= 0 && link.curve.empty()) names.push_back(link.name);
    }
    return names;
  }
  // [links of the machine]: whether a predicted strategy sends over them.
  std::vector<bool> used_links() const {
    const std::vector<bool> kinds = used_kinds();
    std::vector<bool> used(graph_.machine().links.size());
    for (int kind = 0; kind < graph_.num_kinds(); ++kind)
      if (kinds[kind]) used[graph_.link_index(kind)] = true;
    return used;
  }

 private:
  // [kinds of links]: whether a predicted strategy sends over them.
  std::vector<bool> used_kinds() const {
    std::vector<bool> used(graph_.num_kinds());
    for (const auto& [path, forest] : forests_)
      for (const Forest::Node& node : forest.nodes()) used[node.kind] = true;
    return used;
  }

  Classes classes(bool by_classes) const {
    if (!by_classes || (is_tree() && !routing_.uniform()))
      return internal::each_alone(graph_.num_ranks());
    internal::RankTraits traits = routing_.traits();
    for (std::size_t rank = 0; rank < traffic_.sources.size(); ++rank)
      traits.colours[rank] = internal::mixed(2 * traits.colours[rank] + traffic_.sources[rank]);
    Classes classes = internal::find_classes(graph_, traits);
    // The number of tasks grows with the square of the classes, because each class sends to ranks
    // of all classes.
    const std::size_t count = classes.count();
    if (count * count > internal::kMostTasks) return internal::each_alone(graph_.num_ranks());
    return classes;
  }

  bool is_tree() const { return graph_.num_kinds() == 0; }
  internal::BuildInput input(const Classes& classes) const {
    return {.graph = graph_,
            .classes = classes,
            .traffic = traffic_,
            .routing = routing_,
            .chunks = options_.chunks};
  }
  internal::BuildInput input() const { return input(classes_); }

  // Builds the schedules of a strategy. Returns nullopt if they have too many tasks. If the ranks
  // of a class differ, every rank becomes a class.
  std::optional<SchedulePair> build(const Strategy& strategy) {
    if (is_tree()) return internal::build(input(), strategy.copies, {});
    if (!classes_.each_alone()) {
      if (have_equal_ways(strategy)) {
        SchedulePair pair = internal::build(input(), strategy.copies, forests(strategy, classes_));
        if (pair.classes_hold && num_tasks(pair) <= internal::kMostTasks) return pair;
        if (pair.classes_hold) return std::nullopt;
      }
      classes_ = internal::each_alone(graph_.num_ranks());
    }
    const std::size_t ranks = graph_.num_ranks();
    if (ranks * (ranks - 1) * strategy.paths.size() > internal::kMostTasks) return std::nullopt;
    return internal::build(input(), strategy.copies, forests(strategy, classes_));
  }

  SchedulePair build_summed(const Strategy& strategy) {
    const Classes alone = internal::each_alone(graph_.num_ranks());
    internal::check_alone(alone);
    return internal::build_summed(input(alone), forests(strategy, alone));
  }

  // The forests of a strategy. A forest is made once for all strategies that take its path.
  std::vector<internal::WeighedForest> forests(const Strategy& strategy, const Classes& classes) {
    std::vector<internal::WeighedForest> weighed;
    for (const internal::TokenPath& path : strategy.paths) {
      const auto key = std::pair{classes.first, path.rule};
      auto found = forests_.find(key);
      if (found == forests_.end())
        found = forests_.try_emplace(key, graph_, routing_, classes.first, path.rule).first;
      weighed.push_back(
          internal::weigh(graph_, found->second, traffic_, strategy.copies, path.share));
    }
    return weighed;
  }

  bool have_equal_ways(const Strategy& strategy) const {
    return std::ranges::all_of(strategy.paths, [&](const internal::TokenPath& path) {
      return internal::have_equal_ways(graph_, classes_, path.rule);
    });
  }

  const PlanOptions options_;
  const Graph graph_;
  const Workload& workload_;
  const internal::Traffic traffic_;
  const internal::Routing routing_;
  Classes classes_;
  // The forests by their sources and their rule for ways.
  std::map<std::pair<std::vector<int>, Graph::WayRule>, Forest> forests_;
  const internal::Gather gather_;
};

std::vector<std::string> notes(const Planner& planner, const Workload& workload,
                               const std::vector<Prediction>& predictions) {
  std::vector<std::string> notes;
  if (!workload.ids.empty())
    notes.emplace_back("routing: the ids of a trace");
  else if (!workload.loads.empty())
    notes.emplace_back("routing: loads of experts; the choices of a token otherwise independent");
  else if (workload.groups_chosen < workload.groups)
    notes.push_back(
        fmt::format("routing limited to {} of {} groups", workload.groups_chosen, workload.groups));
  else
    notes.emplace_back("routing uniform");
  const Classes& classes = planner.used_classes();
  notes.push_back(classes.each_alone()
                      ? fmt::format("{} ranks, each on its own", planner.graph().num_ranks())
                      : fmt::format("{} ranks in {} class{}", planner.graph().num_ranks(),
                                    classes.count(), classes.count() == 1 ? "" : "es"));
  for (const Prediction& prediction : predictions) {
    if (prediction.chunks == 0)
      notes.push_back(
          fmt::format("times of {} are bounds, as its tasks are too many to simulate; "
                      "a dispatch and its combine take at most {}",
                      prediction.strategy, internal::time_text(prediction.at_most_us)));
    else if (prediction.chunks < planner.options().chunks)
      notes.push_back(fmt::format("{}: each message in {} piece{}, as the tasks are many",
                                  prediction.strategy, prediction.chunks,
                                  prediction.chunks == 1 ? "" : "s"));
  }
  const Workload::Parallel& parallel = workload.parallel;
  if (parallel.layers % parallel.pp != 0)
    notes.push_back(
        fmt::format("{} layers do not divide into {} stages: the step is that of "
                    "stages of {} layers, for which the others wait",
                    parallel.layers, parallel.pp, parallel.stage_layers()));
  const Prediction& best = predictions.front();
  const Machine& machine = planner.graph().machine();
  if (machine.contention != 1)
    notes.push_back(fmt::format("times are of an exchange alone; beside compute {} takes {}",
                                best.strategy,
                                internal::time_text(best.pair_us() * machine.contention)));
  if (workload.exchange.max_tokens > 0) {
    for (std::string& note : internal::unused_notes(machine, planner.used_links(), predictions))
      notes.push_back(std::move(note));
  }
  for (const std::string& name : planner.unlimited_inside())
    notes.push_back(
        fmt::format("'{}' has no rate inside a group behind its port, and limits nothing "
                    "there",
                    name));
  for (const Load& load : best.loads)
    if (load.gb_s <= 0)
      notes.push_back(fmt::format("'{}' has no rate and limits nothing", load.name));
  return notes;
}

// The memory of a rank for an exchange.
WindowBytes window_of(const Planner& planner, const Workload& workload,
                      std::vector<std::string>& notes) try {
  ExchangeConfig config = workload.exchange;
  config.max_tokens = planner.tokens();
  const int num_ranks = planner.graph().num_ranks();
  const std::vector<int>& owners = config.expert_ranks;
  const WindowBytes window = owners.empty()
                                 ? window_bytes(config, num_ranks)
                                 : window_bytes(config, num_ranks, owners.front() * config.tp_size);
  const double memory_gb = planner.graph().machine().memory_gb;
  if (memory_gb > 0 && static_cast<double>(window.expected) > memory_gb * 1e9)
    notes.push_back(fmt::format("the window of a rank is {}, but a rank has {} GB",
                                internal::bytes_text(static_cast<double>(window.expected)),
                                memory_gb));
  return window;
} catch (const Error& error) {
  notes.push_back(fmt::format("such an exchange is refused: {}", error.what()));
  return {};
}

void check(const Workload& workload, const PlanOptions& options) {
  const ExchangeConfig& exchange = workload.exchange;
  const auto refuse = [](const char* what, std::int64_t value, std::int64_t least) {
    throw Error(Code::kInvalidArgument, fmt::format("{} is {}, at least {}", what, value, least));
  };
  const auto require_name = [](const char* what, auto value, auto last) {
    if (value < decltype(value){} || value > last)
      throw Error(Code::kInvalidArgument,
                  fmt::format("{} is {}, not one of 0 to {}", what, static_cast<int>(value),
                              static_cast<int>(last)));
  };
  require_name("dtype", exchange.dtype, DataType::kBytes);
  require_name("wire", exchange.wire, Wire::kFp8Ue8m0);
  require_name("combine_wire", exchange.combine_wire, CombineWire::kLogfmt10);
  if (exchange.tp_size < 1) refuse("tp_size", exchange.tp_size, 1);
  if (exchange.max_tokens < 0) refuse("tokens of a rank", exchange.max_tokens, 0);
  if (exchange.hidden < 1) refuse("hidden", exchange.hidden, 1);
  if (exchange.num_experts < 1) refuse("experts", exchange.num_experts, 1);
  if (exchange.top_k < 1) refuse("top-k", exchange.top_k, 1);
  if (options.chunks < 1) refuse("chunks", options.chunks, 1);
  const Workload::Parallel& parallel = workload.parallel;
  if (parallel.tp < 1) refuse("TP", parallel.tp, 1);
  if (parallel.pp < 1) refuse("PP", parallel.pp, 1);
  if (parallel.layers < 1) refuse("layers", parallel.layers, 1);
  if (parallel.micro_batches < 1) refuse("micro-batches", parallel.micro_batches, 1);
  if (!std::isfinite(parallel.compute_us) || parallel.compute_us < 0)
    throw Error(Code::kInvalidArgument,
                fmt::format("compute of {} us, at least 0", parallel.compute_us));
  if (exchange.top_k > exchange.num_experts)
    throw Error(Code::kInvalidArgument, fmt::format("top-k {} is more than {} experts",
                                                    exchange.top_k, exchange.num_experts));
}

// Schedules over declared links are made for classes of ranks that all send tokens, and blocks of
// experts ascend with the ranks.
void check_roles(const Machine& machine, const Workload& workload) {
  const ExchangeConfig& exchange = workload.exchange;
  const auto refuse = [](const std::string& why) { throw Error(Code::kInvalidArgument, why); };
  if (!std::ranges::is_sorted(exchange.expert_ranks))
    refuse(fmt::format("expert_ranks [{}] do not ascend", fmt::join(exchange.expert_ranks, ", ")));
  if (exchange.token_ranks.empty()) return;
  if (!machine.links.empty())
    refuse(
        fmt::format("token_ranks are planned on the levels of a topology, and machine '{}' has "
                    "{} kinds of links",
                    machine.name, machine.links.size()));
  if (workload.parallel.tp > 1)
    refuse(fmt::format("TP is {} with token_ranks, need 1", workload.parallel.tp));
}

}  // namespace

Plan plan(const Machine& machine, const Workload& workload, const PlanOptions& options) {
  check(workload, options);
  internal::check_declared(machine);
  check_roles(machine, workload);
  Planner planner(machine, workload, options);
  std::vector<Prediction> predictions;
  std::vector<internal::Candidate> candidates;
  for (const Strategy& strategy : internal::strategies_of(planner.graph())) {
    predictions.push_back(planner.predict(strategy));
    candidates.push_back(internal::candidate_of(predictions.back()));
  }
  const std::vector<int> order = internal::best_first(candidates);
  Plan plan;
  for (const int index : order) plan.predictions.push_back(std::move(predictions[index]));
  plan.sentence = internal::why(candidates, order);
  plan.notes = notes(planner, workload, plan.predictions);
  plan.window = window_of(planner, workload, plan.notes);
  return plan;
}

}  // namespace ferry
