#include "plan/build.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace ferry::internal {

namespace {

// One direction of an exchange. Tasks that differ in nothing but their ranks become one.
class Merged {
 public:
  // `from`: the class whose ranks do it. Returns the task.
  int add(Task task, std::int64_t ranks) {
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

  // False: a class has resources that are not equally loaded.
  bool finish(const std::vector<Resource>& resources, Schedule& schedule) {
    bool alike = true;
    for (Task& task : list_) {
      std::vector<Use> uses;
      for (const Use& use : task.uses) {
        const double share = static_cast<double>(task.count) /
                             static_cast<double>(resources[use.resource].instances);
        alike = alike && share == std::floor(share);
        const auto same = std::ranges::find(uses, use.resource, &Use::resource);
        if (same == uses.end())
          uses.push_back({.resource = use.resource, .share = share, .cost = use.cost});
        else
          same->share += share;
      }
      task.uses = std::move(uses);
    }
    schedule = {.resources = resources, .tasks = std::move(list_)};
    return alike;
  }

 private:
  using Key =
      std::tuple<std::string, double, std::vector<std::pair<int, double>>, std::vector<int>>;
  std::vector<Task> list_;
  std::map<Key, int> tasks_;
};

class Builder {
 public:
  Builder(const BuildInput& input, const Strategy& strategy)
      : input_(input),
        strategy_(strategy),
        routes_(input.graph, input.traffic, input.routing),
        resources_(input.graph, input.classes, input.traffic.row_bytes, input.chunks) {}

  SchedulePair run() {
    const Classes& classes = input_.classes;
    SchedulePair pair;
    for (int i = 0; i < classes.count(); ++i) {
      const std::int64_t ranks = classes.size[i];
      const int source = classes.first[i];
      const int out = reorder(source, ranks, dispatch_, "reorder", {});
      const int home = reorder_rows(source, ranks, combine_, {});
      for (const Way& way : strategy_.ways) {
        const std::vector<Hop> hops = routes_.of(source, strategy_, way);
        add_dispatch(hops, ranks, out);
        add_combine(hops, ranks, home);
        count_memory(hops, ranks, classes);
      }
    }
    finish_reorder();
    add_hosts();
    pair.alike = dispatch_.finish(resources_.list(), pair.dispatch);
    pair.alike = combine_.finish(resources_.list(), pair.combine) && pair.alike;
    pair.kinds = resources_.kinds();
    for (int i = 0; i < classes.count(); ++i) {
      const double size = static_cast<double>(classes.size[i]);
      pair.received_bytes = std::max(pair.received_bytes, received_[i] / size);
      pair.staged_bytes = std::max(pair.staged_bytes, staged_[i] / size);
    }
    return pair;
  }

 private:
  struct Direction {
    Merged tasks;
    std::vector<int> last;  // that nothing follows
  };

  double latency(const Hop& hop) const {
    if (hop.kind >= 0) return input_.graph.machine().links[hop.kind].latency_us;
    double most = 0;
    const Topology& tree = input_.graph.tree();
    for (int level = 0; level < tree.num_levels(); ++level)
      if (tree.group_of(hop.from, level) != tree.group_of(hop.to, level))
        most = std::max(most, tree.level(level).link.latency_us);
    return most;
  }

  std::string what(const Hop& hop) const {
    const Topology& tree = input_.graph.tree();
    int level = 0;
    while (tree.group_of(hop.from, level) == tree.group_of(hop.to, level)) ++level;
    const std::string& name =
        hop.kind >= 0 ? input_.graph.machine().links[hop.kind].name : tree.level(level).name;
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
                               ranks);
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
                                    ranks);
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
      kind[classes.of[hops[i].to]] += hops[i].dispatch_bytes * static_cast<double>(ranks);
    }
  }

  // A rank's tokens brought into order, one row each.
  int reorder(int rank, std::int64_t ranks, Merged& tasks, const char* what,
              std::vector<int> after) {
    std::vector<Use> uses = resources_.reordering(rank);
    if (uses.empty()) return -1;
    const double bytes = static_cast<double>(input_.traffic.tokens) * input_.traffic.row_bytes;
    return tasks.add(
        {.what = what, .bytes = bytes, .uses = std::move(uses), .after = std::move(after)}, ranks);
  }

  // The rows of its experts.
  int reorder_rows(int rank, std::int64_t ranks, Merged& tasks, std::vector<int> after) {
    std::vector<Use> uses = resources_.reordering(rank);
    if (uses.empty()) return -1;
    const double rows = input_.routing.rows(input_.routing.of(rank)) * input_.graph.num_ranks();
    const double bytes =
        rows * static_cast<double>(input_.traffic.tokens) * input_.traffic.row_bytes;
    return tasks.add({.what = "reorder of rows",
                      .bytes = bytes,
                      .uses = std::move(uses),
                      .after = std::move(after)},
                     ranks);
  }

  void finish_reorder() {
    const Classes& classes = input_.classes;
    for (int i = 0; i < classes.count(); ++i) {
      reorder_rows(classes.first[i], classes.size[i], dispatch_, dispatch_last_);
      reorder(classes.first[i], classes.size[i], combine_, "reorder", combine_last_);
    }
  }

  // Every row of a node is written, and read again, by its processors.
  void add_hosts() {
    const Machine::Host& host = input_.graph.machine().host;
    if (host.dispatch.gb_s <= 0 && host.combine.gb_s <= 0) return;
    const Topology& tree = input_.graph.tree();
    for (int node = 0; node < tree.num_nodes(); ++node) {
      const std::span<const int> ranks = tree.node_ranks(node);
      if (classes_one() && node > 0) break;
      const std::int64_t nodes = classes_one() ? tree.num_nodes() : 1;
      double rows = 0;
      for (const int rank : ranks) {
        const Routing::Ranks own = input_.routing.of(rank);
        rows +=
            input_.traffic.row_per_rank ? input_.routing.touched(own) : input_.routing.rows(own);
      }
      rows *= static_cast<double>(input_.traffic.tokens) * tree.num_ranks();
      add_host(dispatch_, host.dispatch, ranks, {rows, input_.traffic.row_bytes}, nodes);
      add_host(combine_, host.combine, ranks, {rows, input_.traffic.output_bytes}, nodes);
    }
  }

  struct RowSet {
    double rows, row_bytes;
  };
  void add_host(Merged& tasks, const Machine::Copying& cost, std::span<const int> ranks,
                const RowSet& set, std::int64_t nodes) {
    const double bytes = set.rows * set.row_bytes;
    const bool beyond = bytes > input_.graph.machine().host.cache_mb * 1e6 && cost.beyond_gb_s > 0;
    const double gb_s = beyond ? cost.beyond_gb_s : cost.gb_s;
    if (gb_s <= 0) return;
    const double us_per_byte = 1 / (gb_s * 1e3) + cost.row_ns / 1e3 / set.row_bytes;
    tasks.add({.what = "copies",
               .bytes = bytes,
               .latency_us = cost.rank_us * static_cast<double>(ranks.size()),
               .uses = {resources_.host(ranks.front(), us_per_byte)}},
              nodes);
  }
  bool classes_one() const { return input_.classes.count() == 1; }

  const BuildInput& input_;
  const Strategy& strategy_;
  const Routes routes_;
  Resources resources_;
  Merged dispatch_, combine_;
  std::vector<int> dispatch_last_, combine_last_;
  std::vector<double> received_, staged_;  // [classes]
};

}  // namespace

SchedulePair build(const BuildInput& input, const Strategy& strategy) {
  return Builder(input, strategy).run();
}

}  // namespace ferry::internal
