#include "plan/merged_tasks.h"

#include <algorithm>
#include <cmath>

namespace ferry::internal {

int MergedTasks::add(Task task, std::int64_t ranks) {
  std::ranges::sort(task.after);
  task.after.erase(std::unique(task.after.begin(), task.after.end()), task.after.end());
  std::vector<std::pair<int, double>> uses;
  for (const Use& use : task.uses) uses.emplace_back(use.resource, use.cost);
  std::ranges::sort(uses);
  Key key{task.what, task.bytes, std::move(uses), task.after};
  const auto [found, is_new] = tasks_.try_emplace(std::move(key), static_cast<int>(list_.size()));
  if (is_new) {
    task.count = 0;
    list_.push_back(std::move(task));
  }
  list_[found->second].count += ranks;
  return found->second;
}

bool MergedTasks::finish(const std::vector<Resource>& resources, Schedule& schedule) {
  bool equal = true;
  for (Task& task : list_) {
    std::vector<Use> uses;
    for (const Use& use : task.uses) {
      const double count =
          static_cast<double>(task.count) / static_cast<double>(resources[use.resource].instances);
      const double share = use.share * count;
      equal = equal && (use.share != 1 || count == std::floor(count));
      const auto same = std::ranges::find(uses, use.resource, &Use::resource);
      if (same == uses.end())
        uses.push_back({.resource = use.resource, .share = share, .cost = use.cost});
      else
        same->share += share;
    }
    task.uses = std::move(uses);
  }
  schedule = {.resources = resources, .tasks = std::move(list_)};
  return equal;
}

}  // namespace ferry::internal
