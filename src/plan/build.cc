#include "plan/build.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "plan/local_work.h"
#include "plan/merged_tasks.h"
#include "plan/tree_tasks.h"

namespace ferry::internal {

namespace {

bool is_like(const Hop& hop, const Hop& other) {
  const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(a, b); };
  return hop.kind == other.kind && hop.parent == other.parent &&
         near(hop.dispatch_bytes, other.dispatch_bytes) &&
         near(hop.combine_bytes, other.combine_bytes);
}

// Hops to ranks that look alike from the source, as one; `alike` turns false where they are not.
std::vector<Hop> merged(const Classes& classes, int source, const std::vector<Hop>& hops,
                        bool& alike) {
  std::map<std::uint64_t, int> known;
  std::vector<Hop> merged;
  std::vector<int> place(hops.size());
  for (std::size_t i = 0; i < hops.size(); ++i) {
    Hop hop = hops[i];
    if (hop.parent >= 0) hop.parent = place[hop.parent];
    const auto [found, is_new] =
        known.try_emplace(classes.seen(source, hop.to), static_cast<int>(merged.size()));
    place[i] = found->second;
    if (is_new) {
      merged.push_back(hop);
    } else {
      alike = alike && is_like(hop, merged[place[i]]);
      ++merged[place[i]].count;
    }
  }
  return merged;
}

class Builder {
 public:
  Builder(const BuildInput& input, const Strategy& strategy)
      : input_(input),
        strategy_(strategy),
        routes_(input.graph, input.traffic, input.routing),
        resources_(input.graph, input.classes, input.traffic.row_bytes, input.chunks),
        local_(input, resources_) {}

  SchedulePair run() {
    SchedulePair pair;
    if (input_.graph.num_kinds() > 0)
      add_over_links(pair);
    else
      add_over_tree(pair);
    const Classes& classes = input_.classes;
    for (int i = 0; i < classes.count(); ++i) {
      local_.reorder_rows(classes.first[i], classes.size[i], dispatch_, dispatch_last_);
      local_.reorder_tokens(classes.first[i], classes.size[i], combine_, combine_last_);
    }
    local_.copy_rows(dispatch_, combine_);
    pair.alike = alike_ && dispatch_.finish(resources_.list(), pair.dispatch);
    pair.alike = combine_.finish(resources_.list(), pair.combine) && pair.alike;
    pair.kinds = resources_.kinds();
    return pair;
  }

 private:
  // From the first rank of each class; the others do alike.
  void add_over_links(SchedulePair& pair) {
    const Classes& classes = input_.classes;
    for (int i = 0; i < classes.count(); ++i) {
      const std::int64_t ranks = classes.size[i];
      const int source = classes.first[i];
      const int out = local_.reorder_tokens(source, ranks, dispatch_, {});
      const int home = local_.reorder_rows(source, ranks, combine_, {});
      for (const Way& way : strategy_.ways) {
        const std::vector<Hop> hops =
            merged(classes, source, routes_.of(source, strategy_, way), alike_);
        add_dispatch(hops, ranks, out);
        add_combine(hops, ranks, home);
        count_memory(hops, ranks, classes);
      }
    }
    for (int i = 0; i < classes.count(); ++i) {
      const double size = static_cast<double>(classes.size[i]);
      pair.received_bytes = std::max(pair.received_bytes, received_[i] / size);
      pair.staged_bytes = std::max(pair.staged_bytes, staged_[i] / size);
    }
  }

  void add_over_tree(SchedulePair& pair) {
    std::vector<int> out, home;
    const auto keep = [](int task, std::vector<int>& tasks) {
      if (task >= 0) tasks.push_back(task);
    };
    for (int i = 0; i < input_.classes.count(); ++i) {
      const int rank = input_.classes.first[i];
      keep(local_.reorder_tokens(rank, input_.classes.size[i], dispatch_, {}), out);
      keep(local_.reorder_rows(rank, input_.classes.size[i], combine_, {}), home);
    }
    const TreeTasks tree(
        input_,
        tree_steps(input_.graph.tree(), input_.traffic, input_.routing.demand(), strategy_.copies),
        resources_);
    dispatch_last_ = tree.add_dispatch(dispatch_, out);
    combine_last_ = tree.add_combine(combine_, home);
    std::tie(pair.received_bytes, pair.staged_bytes) = tree.memory();
  }

  double latency(const Hop& hop) const { return input_.graph.machine().links[hop.kind].latency_us; }

  std::string what(const Hop& hop) const {
    const std::string& name = input_.graph.machine().links[hop.kind].name;
    return hop.parent < 0 ? name : name + ", passed on";
  }

  void add_dispatch(const std::vector<Hop>& hops, std::int64_t ranks, int first) {
    std::vector<int> tasks(hops.size(), -1);
    for (std::size_t i = 0; i < hops.size(); ++i) {
      const Hop& hop = hops[i];
      if (hop.dispatch_bytes <= 0) continue;
      const int before = hop.parent < 0 ? first : tasks[hop.parent];
      tasks[i] = dispatch_.add({.what = what(hop),
                                .bytes = hop.dispatch_bytes,
                                .latency_us = latency(hop),
                                .uses = resources_.of(hop, false, hop.dispatch_bytes),
                                .after = before < 0 ? std::vector<int>{} : std::vector{before}},
                               ranks * hop.count);
      dispatch_last_.push_back(tasks[i]);
    }
  }

  void add_combine(const std::vector<Hop>& hops, std::int64_t ranks, int first) {
    std::vector<std::vector<int>> before(hops.size());
    for (std::size_t i = hops.size(); i-- > 0;) {
      const Hop& hop = hops[i];
      if (hop.combine_bytes <= 0) continue;
      if (first >= 0) before[i].push_back(first);
      const int task = combine_.add({.what = what(hop),
                                     .bytes = hop.combine_bytes,
                                     .latency_us = latency(hop),
                                     .uses = resources_.of(hop, true, hop.combine_bytes),
                                     .after = std::move(before[i])},
                                    ranks * hop.count);
      if (hop.parent >= 0) before[hop.parent].push_back(task);
      combine_last_.push_back(task);
    }
  }

  // Of the bytes that a rank gets, those that it passes on are staged; the others are its own.
  void count_memory(const std::vector<Hop>& hops, std::int64_t ranks, const Classes& classes) {
    received_.resize(classes.count());
    staged_.resize(classes.count());
    std::vector<bool> passes_on(hops.size());
    for (const Hop& hop : hops)
      if (hop.parent >= 0) passes_on[hop.parent] = true;
    for (std::size_t i = 0; i < hops.size(); ++i) {
      std::vector<double>& kind = passes_on[i] ? staged_ : received_;
      kind[classes.of[hops[i].to]] +=
          hops[i].dispatch_bytes * static_cast<double>(ranks * hops[i].count);
    }
  }

  const BuildInput& input_;
  const Strategy& strategy_;
  const Routes routes_;
  Resources resources_;
  LocalWork local_;
  MergedTasks dispatch_, combine_;
  std::vector<int> dispatch_last_, combine_last_;
  std::vector<double> received_, staged_;  // [classes]
  bool alike_ = true;
};

}  // namespace

SchedulePair build(const BuildInput& input, const Strategy& strategy) {
  return Builder(input, strategy).run();
}

}  // namespace ferry::internal
