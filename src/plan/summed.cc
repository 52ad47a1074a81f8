#include "plan/summed.h"

#include <algorithm>
#include <array>
#include <utility>

#include "plan/hop_sums.h"
#include "plan/hop_ways.h"
#include "plan/local_work.h"
#include "plan/merged_tasks.h"

namespace ferry::internal {

namespace {

constexpr std::array kHalves = {kDispatch, kCombine};

// The tasks of ranks before the first hops and after the last hops, and the tasks of hosts beside
// the hops.
struct Local {
  Schedule before, after, beside;
};

std::array<Local, 2> local_tasks(const BuildInput& input, Resources& resources) {
  LocalWork local(input, resources);
  std::array<MergedTasks, 2> before, after, beside;
  for (int rank = 0; rank < input.graph.num_ranks(); ++rank) {
    local.reorder_tokens(rank, 1, before[kDispatch], {});
    local.reorder_rows(rank, 1, before[kCombine], {});
    local.reorder_rows(rank, 1, after[kDispatch], {});
    local.reorder_tokens(rank, 1, after[kCombine], {});
  }
  local.copy_rows(beside[kDispatch], beside[kCombine]);
  std::array<Local, 2> made;
  for (const Half half : kHalves) {
    before[half].finish(resources.list(), made[half].before);
    after[half].finish(resources.list(), made[half].after);
    beside[half].finish(resources.list(), made[half].beside);
  }
  return made;
}

// The largest sum of latencies on a way of a source, over hops that follow each other.
double latencies_us(const std::vector<WeighedForest>& forests, Half half, std::size_t source) {
  double longest = 0;
  for (const WeighedForest& one : forests) {
    for (const int node : one.forest->of(source)) {
      const Weight& weight = one.weights[node];
      if (weight.bytes[half] > 0) longest = std::max(longest, weight.combine_start_us);
    }
  }
  return longest;
}

class SummedBuilder {
 public:
  SummedBuilder(const BuildInput& input, const std::vector<WeighedForest>& forests)
      : input_(input),
        forests_(forests),
        resources_(input.graph, input.classes, input.traffic.row_bytes, input.chunks),
        local_(local_tasks(input, resources_)),
        sums_(input, resources_, forests_),
        list_(resources_.list()) {}

  SchedulePair run() {
    SchedulePair pair{.dispatch = {},
                      .combine = {},
                      .kinds = resources_.kinds(),
                      .received_bytes = sums_.received_bytes(),
                      .staged_bytes = sums_.staged_bytes()};
    add_links();
    pair.ways.emplace();
    add(kDispatch, pair.dispatch, pair.ways->dispatch);
    add(kCombine, pair.combine, pair.ways->combine);
    pair.ways->at_most_us = at_most_us_;
    return pair;
  }

 private:
  // Adds resources for the busiest links of each kind. The number of instances of the first one is
  // the number of links.
  void add_links() {
    for (const HopSums::Links& links : sums_.links()) {
      link_ids_.push_back(links.load < 0 ? -1 : static_cast<int>(list_.size()));
      if (links.load < 0) continue;
      const double capacity = resources_.kinds()[links.load].gb_s * kBytesPerUs;
      for (std::size_t i = 0; i < links.busiest[0].size(); ++i)
        list_.push_back(
            {.kind = links.load, .capacity = capacity, .instances = i == 0 ? links.num_used : 0});
    }
  }

  void add(Half half, Schedule& work, Schedule& ways) {
    work.resources = ways.resources = list_;
    add_sums(half, work);
    HopWays hop_ways(input_.graph, resources_, {sums_.uses(), link_ids_}, half);
    for (const WeighedForest& forest : forests_) hop_ways.add(forest);
    ways.tasks = hop_ways.tasks();
    double last_us = 0;
    for (const Interval& way : earliest(ways)) last_us = std::max(last_us, way.start_us);
    add_local(half, last_us, work, ways);
    add_at_most(half, work, hop_ways);
  }

  // Adds a task for each sum. It starts when its first byte can move.
  void add_sums(Half half, Schedule& work) const {
    for (const HopSums::End& end : sums_.ends()) {
      const Sum& sum = end.sums[half];
      if (sum.bytes > 0)
        work.tasks.push_back({.bytes = sum.bytes, .latency_us = sum.first_us, .uses = end.uses});
    }
    for (std::size_t kind = 0; kind < link_ids_.size(); ++kind) {
      if (link_ids_[kind] < 0) continue;
      Use use{.resource = link_ids_[kind]};
      for (const Sum& sum : sums_.links()[kind].busiest[half]) {
        use.cost = sum.us > 0 ? sum.us * list_[use.resource].capacity / sum.bytes : 1;
        if (sum.bytes > 0)
          work.tasks.push_back({.bytes = sum.bytes, .latency_us = sum.first_us, .uses = {use}});
        ++use.resource;
      }
    }
  }

  // Adds the local tasks. `last_us` is the latest time at which a hop can move its first byte.
  void add_local(Half half, double last_us, Schedule& work, Schedule& ways) const {
    const auto [before, after, beside] = local_[half];
    for (std::size_t rank = 0; rank < before.tasks.size(); ++rank) {
      work.tasks.push_back(before.tasks[rank]);
      ways.tasks.push_back(before.tasks[rank]);
      ways.tasks.back().latency_us += latencies_us(forests_, half, rank);
    }
    for (const auto& [tasks, start_us] : {std::pair{&after.tasks, last_us}, {&beside.tasks, 0.0}}) {
      for (Task task : *tasks) {
        task.latency_us += start_us;
        work.tasks.push_back(task);
        ways.tasks.push_back(std::move(task));
      }
    }
  }

  // Adds an upper bound. While a task runs, one of its resources is full, and no resource is full
  // for longer than its work takes. So a way of bytes takes at most its latencies and the work of
  // all resources on it.
  void add_at_most(Half half, const Schedule& work, const HopWays& ways) {
    const std::vector<double> work_us = resource_us(work);
    const auto most_of = [&](const Schedule& schedule) {
      double most = 0;
      for (const Task& task : schedule.tasks) {
        double us = task.latency_us;
        for (const Use& use : task.uses) us += work_us[use.resource];
        most = std::max(most, us);
      }
      return most;
    };
    const std::vector<double> passage_us = most_of_passages(half, work_us);
    std::vector<double> most(ways.tasks().size());
    for (std::size_t i = 0; i < most.size(); ++i) {
      for (const int before : ways.tasks()[i].after) most[i] = std::max(most[i], most[before]);
      most[i] += ways.tasks()[i].latency_us + passage_us[ways.passages()[i]];
    }
    const double hops_us = most.empty() ? 0 : std::ranges::max(most);
    const auto& [before, after, beside] = local_[half];
    at_most_us_ += std::max(most_of(before) + hops_us + most_of(after), most_of(beside));
  }

  // [passages]: an upper bound for the work on a way through a passage. It is the most work of a
  // link, plus the most work of all resources at one sender, plus that at one receiver.
  std::vector<double> most_of_passages(Half half, const std::vector<double>& work_us) const {
    std::vector<std::array<double, 2>> ends(resources_.num_passages());
    for (const HopSums::End& end : sums_.ends()) {
      double us = 0;
      for (const Use& use : end.uses) us += work_us[use.resource];
      ends[end.passage][end.receives] = std::max(ends[end.passage][end.receives], us);
    }
    std::vector<double> most;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const auto& links = sums_.links()[resources_.passage(i).kind].busiest[half];
      most.push_back(ends[i][0] + ends[i][1] + std::ranges::max(links, {}, &Sum::us).us);
    }
    return most;
  }

  const BuildInput& input_;
  const std::vector<WeighedForest>& forests_;
  Resources resources_;
  // Declared before sums_, so that the kinds of loads of the local tasks come first in
  // Resources::kinds().
  const std::array<Local, 2> local_;
  const HopSums sums_;
  std::vector<Resource> list_;  // resources_.list() and the links
  std::vector<int> link_ids_;   // [kinds of links]: the index of its first link in list_
  double at_most_us_ = 0;
};

}  // namespace

SchedulePair build_summed(const BuildInput& input, const std::vector<WeighedForest>& forests) {
  return SummedBuilder(input, forests).run();
}

}  // namespace ferry::internal
