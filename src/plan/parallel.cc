#include "plan/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ferry/status.h"
#include "plan/merged_tasks.h"
#include "plan/resources.h"
#include "plan/tree_tasks.h"

namespace ferry::internal {

namespace {

// The limit for ranks of a machine whose gather is computed. A larger machine is reduced to fewer
// groups.
constexpr int kMostGathering = 512;

// The bytes of the results of a rank's tokens, as a combine writes them.
double result_bytes(const Traffic& traffic) {
  return static_cast<double>(traffic.tokens) * traffic.result_bytes;
}

// The steps of a gather: ranks whose groups differ at a level exchange their rows over the links of
// that level.
std::vector<TreeStep> gather_steps(const BuildInput& input, int tp) {
  const Topology& tree = input.graph.tree();
  std::vector<TreeStep> steps;
  for (int level = 0; level < tree.num_levels(); ++level) {
    TreeStep step{.level = level,
                  .network = level <= tree.find_level(Topology::kHost),
                  .ranks = std::vector<TreeLoad>(tree.num_ranks())};
    for (int rank = 0; rank < tree.num_ranks(); ++rank) {
      const int first = rank - rank % tp;
      for (int other = first; other < first + tp; ++other) {
        const bool part_here = tree.group_of(rank, level) != tree.group_of(other, level);
        if (!part_here ||
            (level > 0 && tree.group_of(rank, level - 1) != tree.group_of(other, level - 1)))
          continue;
        step.ranks[rank].out.dispatch += result_bytes(input.traffic);
        step.ranks[rank].in.dispatch += result_bytes(input.traffic);
      }
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

// The machine for which the gather is computed. All neighbours gather in the same way, so the first
// groups of a large machine represent all of its groups.
Machine gathering(const BuildInput& input, int tp) {
  const Machine& machine = input.graph.machine();
  const int ranks = input.graph.num_ranks();
  if (input.graph.num_kinds() == 0 || ranks <= kMostGathering) return machine;
  int part = std::lcm(ranks / machine.tree.level(0).num_groups(), tp);
  while (2 * part <= kMostGathering) part *= 2;
  return machine.resized(part);
}

// A part of the bytes that each rank sends to its neighbours, with the rule for the ways of that
// part.
struct GatherPart {
  int tp;
  double bytes;
  Graph::WayRule rule;
};

// Adds the tasks of one part. The ranks on a way pass the bytes on.
void add_gather_part(const Graph& graph, const GatherPart& part, Resources& resources,
                     MergedTasks& tasks) {
  const auto& [tp, bytes, rule] = part;
  for (int rank = 0; rank < graph.num_ranks(); ++rank) {
    const Graph::Ways ways = graph.ways(rank, rule);
    std::vector<bool> crossed(graph.num_ranks());
    for (int other = rank - rank % tp; other < rank - rank % tp + tp; ++other)
      for (int at = other; at >= 0 && !crossed[at]; at = ways.reached[at].from) crossed[at] = true;
    std::vector<int> task_of(graph.num_ranks(), -1);
    for (const int at : ways.order) {
      const auto [from, kind, depth] = ways.reached[at];
      if (from < 0 || !crossed[at]) continue;
      const Hop hop{.from = from, .to = at, .kind = kind, .own = task_of[from] < 0};
      Task task{.what = "gather",
                .bytes = bytes,
                .latency_us = graph.link(kind).latency_us,
                .uses = resources.of(hop, false, bytes)};
      if (!hop.own) task.after = {task_of[from]};
      task_of[at] = tasks.add(std::move(task), 1);
    }
  }
}

void add_gather_over_links(const BuildInput& input, int tp, Resources& resources,
                           MergedTasks& tasks) {
  const auto rules = input.graph.dealt(input.graph.closed_per_rank());
  const double bytes = result_bytes(input.traffic) / static_cast<double>(rules.size());
  for (const Graph::WayRule& rule : rules)
    add_gather_part(input.graph, {.tp = tp, .bytes = bytes, .rule = rule}, resources, tasks);
}

}  // namespace

Traffic share_of_tp(Traffic traffic, int tp) {
  const int ranks = static_cast<int>(traffic.rank_experts.size());
  if (tp < 1 || ranks % tp != 0)
    throw Error(Code::kInvalidArgument, fmt::format("TP {} does not divide {} ranks", tp, ranks));
  traffic.tokens = (traffic.tokens + tp - 1) / tp;
  return traffic;
}

Gather gather_of(const BuildInput& input, int tp) {
  if (tp == 1) return {};
  const Graph graph(gathering(input, tp));
  const Classes alone = each_alone(graph.num_ranks());
  const BuildInput each{.graph = graph,
                        .classes = alone,
                        .traffic = input.traffic,
                        .routing = input.routing,
                        .chunks = input.chunks};
  Resources resources(each.graph, alone, each.traffic.row_bytes, each.chunks);
  MergedTasks tasks;
  if (graph.num_kinds() > 0)
    add_gather_over_links(each, tp, resources, tasks);
  else
    TreeTasks(each, gather_steps(each, tp), resources).add_dispatch(tasks, {});
  Schedule schedule;
  tasks.finish(resources.list(), schedule);
  return {.bytes = (tp - 1) * result_bytes(input.traffic), .us = bound_us(schedule)};
}

Step step_of(const Prediction& prediction, const Gather& gather, const Workload& workload,
             double contention) {
  const Workload::Parallel& parallel = workload.parallel;
  const double moving_us = prediction.pair_us() + gather.us;
  const double turns = static_cast<double>(parallel.stage_layers()) *
                       (static_cast<double>(parallel.micro_batches) + parallel.pp - 1);
  Step step{.gathered_bytes = gather.bytes, .gather_us = gather.us};
  step.layer_us = parallel.compute_us + moving_us;
  step.paired_us = parallel.micro_batches > 1
                       ? std::max(parallel.compute_us, contention * moving_us)
                       : step.layer_us;
  step.step_us = turns * step.layer_us;
  step.paired_step_us = turns * step.paired_us;
  return step;
}

}  // namespace ferry::internal
