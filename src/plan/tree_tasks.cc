#include "plan/tree_tasks.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace ferry::internal {

TreeTasks::TreeTasks(const BuildInput& input, std::vector<TreeStep> steps, Resources& resources)
    : input_(input),
      tree_(input.graph.tree()),
      steps_(std::move(steps)),
      uses_(steps_.size()),
      resources_(resources) {
  for (int level = 0; level < tree_.num_levels(); ++level) add_level(level);
  for (int engine = 0; engine < std::ssize(input.graph.machine().engines); ++engine)
    add_engine(engine);
  if (input.graph.machine().host.network_gb_s > 0) add_processors();
}

void TreeTasks::add_level(int level) {
  Loads loads;
  for (const TreeStep& step : steps_) loads.push_back(on_links(tree_, step, level));
  const Topology::Level& at = tree_.level(level);
  add({at.name, at.link.total_gb_s(), "stated"}, loads, true);
}

void TreeTasks::add_engine(int engine) {
  const Machine::Engine& kind = input_.graph.machine().engines[engine];
  Loads loads;
  for (const TreeStep& step : steps_) {
    const bool used = step.passed_on ? kind.relays : kind.sends;
    loads.push_back(used ? step.ranks : std::vector<TreeLoad>(step.ranks.size()));
  }
  add({kind.name, kind.gb_s, kind.source}, loads, false);
}

void TreeTasks::add(const LoadKind& kind, const Loads& loads, bool both_directions) {
  // Loads are compared in single precision, so that rounding makes no difference.
  std::map<std::vector<float>, std::pair<std::vector<PairBytes>, int>> equal;
  const std::size_t count = loads.empty() ? 0 : loads[0].size();
  for (std::size_t i = 0; i < count; ++i) {
    for (const bool out : {true, false}) {
      if (!out && !both_directions) continue;
      std::vector<PairBytes> bytes;
      std::vector<float> key;
      for (const std::vector<TreeLoad>& step : loads) {
        const auto& [outwards, inwards] = step[i];
        bytes.push_back(out ? PairBytes{outwards.dispatch, inwards.combine}
                            : PairBytes{inwards.dispatch, outwards.combine});
        key.push_back(static_cast<float>(bytes.back().dispatch));
        key.push_back(static_cast<float>(bytes.back().combine));
      }
      if (std::ranges::all_of(key, [](float one) { return one == 0; })) continue;
      ++equal.try_emplace(std::move(key), std::move(bytes), 0).first->second.second;
    }
  }
  for (const auto& [key, found] : equal) {
    const auto& [bytes, instances] = found;
    const int resource = resources_.add(kind, instances);
    for (std::size_t step = 0; step < uses_.size(); ++step)
      uses_[step].push_back({resource, bytes[step], static_cast<double>(instances)});
  }
}

void TreeTasks::add_processors() {
  const double us_per_byte = 1 / (input_.graph.machine().host.network_gb_s * 1e3);
  for (const Node& node : nodes_of(input_.graph, input_.classes)) {
    const Use use = resources_.host(node.ranks.front(), us_per_byte);
    for (std::size_t step = 0; step < steps_.size(); ++step) {
      if (!steps_[step].network) continue;
      PairBytes ends;
      for (const int rank : node.ranks)
        ends += steps_[step].ranks[rank].out, ends += steps_[step].ranks[rank].in;
      const PairBytes bytes{ends.dispatch / 2, ends.combine / 2};
      uses_[step].push_back({use.resource, bytes, static_cast<double>(node.count), use.cost});
    }
  }
}

// Makes the task of a step. It has the bytes of the busiest rank, also for all other ranks.
Task TreeTasks::task(std::size_t index, double PairBytes::*bytes) const {
  const TreeStep& step = steps_[index];
  Task task{.what = tree_.level(step.level).name + (step.passed_on ? ", passed on" : ""),
            .latency_us = latency_us(tree_, step)};
  for (const TreeLoad& load : step.ranks)
    task.bytes = std::max({task.bytes, load.out.*bytes, load.in.*bytes});
  for (const StepUse& use : uses_[index]) {
    if (use.bytes.*bytes <= 0) continue;
    task.uses.push_back({.resource = use.resource,
                         .share = use.bytes.*bytes * use.instances / task.bytes / tree_.num_ranks(),
                         .cost = use.cost});
  }
  return task;
}

std::vector<int> TreeTasks::add_steps(MergedTasks& tasks, const std::vector<int>& first,
                                      bool combine) const {
  const auto bytes = combine ? &PairBytes::combine : &PairBytes::dispatch;
  std::vector<int> ids(steps_.size(), -1), all;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const std::size_t index = combine ? steps_.size() - 1 - i : i;
    Task next = task(index, bytes);
    if (next.bytes <= 0) continue;
    for (std::size_t other = 0; other < steps_.size(); ++other)
      if (ids[other] >= 0 && waits_for(steps_[index], steps_[other], combine))
        next.after.push_back(ids[other]);
    if (combine || !steps_[index].passed_on)
      next.after.insert(next.after.end(), first.begin(), first.end());
    ids[index] = tasks.add(std::move(next), tree_.num_ranks());
    all.push_back(ids[index]);
  }
  return all;
}

std::vector<int> TreeTasks::add_dispatch(MergedTasks& tasks, const std::vector<int>& first) const {
  return add_steps(tasks, first, false);
}
std::vector<int> TreeTasks::add_combine(MergedTasks& tasks, const std::vector<int>& first) const {
  return add_steps(tasks, first, true);
}

std::pair<double, double> TreeTasks::memory() const {
  double received = 0, staged = 0;
  for (int rank = 0; rank < tree_.num_ranks(); ++rank) {
    const bool alone = tree_.node_ranks(tree_.node_of(rank)).size() == 1;
    double own = 0, others = 0;
    for (const TreeStep& step : steps_)
      (step.network && !alone ? others : own) += step.ranks[rank].in.dispatch;
    received = std::max(received, own);
    staged = std::max(staged, others);
  }
  return {received, staged};
}

}  // namespace ferry::internal
