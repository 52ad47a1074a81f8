#include "plan/hop_ways.h"

#include <algorithm>

namespace ferry::internal {

namespace {

std::vector<int>& at_level(std::vector<std::pair<int, std::vector<int>>>& levels, int level) {
  const auto found = std::ranges::find(levels, level, &std::pair<int, std::vector<int>>::first);
  return found != levels.end() ? found->second
                               : levels.emplace_back(level, std::vector<int>{}).second;
}

}  // namespace

// Adds the tasks of a forest: parents first in a dispatch, children first in a combine.
void HopWays::add(const WeighedForest& forest) {
  forest_ = &forest;
  const int count = static_cast<int>(forest.forest->nodes().size());
  passed_.assign(count, {});
  before_.assign(count, {});
  for (int i = 0; i < count; ++i) {
    if (half_ == kDispatch)
      add_dispatch(count - 1 - i);
    else
      add_combine(i);
  }
}

void HopWays::add_dispatch(int node) {
  if (!moves(node)) return;
  std::vector<int> added;
  add_own(node, {}, added);
  for (auto& [outermost, after] : passed_[node])
    added.push_back(add_task(node, false, outermost, std::move(after)));
  passed_[node] = {};
  for (const int child : node_at(node).children) {
    std::vector<int>& after = at_level(passed_[child], level(node, child));
    after.insert(after.end(), added.begin(), added.end());
  }
}

void HopWays::add_combine(int node) {
  if (!moves(node)) return;
  for (const int child : node_at(node).children) {
    if (!moves(child)) continue;
    std::vector<int>& same = at_level(passed_[child], level(node, child));
    if (same.empty()) same.push_back(add_task(child, false, level(node, child), before_[child]));
    before_[node].push_back(same.front());
  }
  std::vector<int> added;
  add_own(node, before_[node], added);
}

void HopWays::add_own(int node, const std::vector<int>& after, std::vector<int>& added) {
  for (int outermost = 0; outermost < graph_.tree().num_levels(); ++outermost)
    if (node_at(node).levels >> outermost & 1)
      added.push_back(add_task(node, true, outermost, after));
}

int HopWays::add_task(int node, bool own, int outermost, std::vector<int> after) {
  const int kind = node_at(node).kind;
  const std::size_t at = resources_.index({.kind = kind, .own = own, .outermost = outermost});
  Task task{.bytes = forest_->weights[node].bytes[half_],
            .latency_us = graph_.link(kind).latency_us,
            .uses = uses_.passages[at],
            .after = std::move(after)};
  if (uses_.links[kind] >= 0)
    task.uses.push_back(
        {.resource = uses_.links[kind], .cost = resources_.link_cost(kind, task.bytes)});
  tasks_.push_back(std::move(task));
  passages_.push_back(at);
  return static_cast<int>(tasks_.size()) - 1;
}

int HopWays::level(int node, int child) const {
  return graph_.outermost_parted(node_at(node).to, node_at(child).to);
}

}  // namespace ferry::internal
