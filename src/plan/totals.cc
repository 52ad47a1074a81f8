#include "plan/totals.h"

#include <algorithm>
#include <array>
#include <optional>

#include "plan/hop_sums.h"
#include "plan/local_work.h"
#include "plan/merged_tasks.h"
#include "plan/predict.h"

namespace ferry::internal {

namespace {

using Weights = std::vector<Weight>;  // [nodes]
constexpr std::array kHalves = {kDispatch, kCombine};

double latency_of(const Graph& graph, const Forest::Node& node) {
  return graph.machine().links[node.kind].latency_us;
}

Weights weigh(const BuildInput& input, const Forest& forest, TokenCopies copies, double share) {
  Weights weights;
  for (const Forest::Node& node : forest.nodes()) {
    const PairBytes bytes = hop_bytes(input.traffic, copies, node.wanted);
    Weight weight{.bytes = {bytes.dispatch * share, bytes.combine * share}};
    for (const int child : node.children) {
      if (weights[child].bytes[kCombine] > 0)
        weight.home_start_us = std::max(weight.home_start_us, weights[child].home_start_us);
    }
    weight.home_start_us += latency_of(input.graph, node);
    weights.push_back(weight);
  }
  return weights;
}

// A hop in one of the ways of bytes through hops that wait for each other.
struct Leg {
  Resources::Passage passage;
  double bytes = 0, latency_us = 0;
  double start_us = 0;   // when its first byte can move, at the latest
  double before_us = 0;  // the value of what it waits for
};

// The highest value of a hop; `value` of a leg is not lower than what it waits for.
template <typename Value>
double longest_way(const Graph& graph, const Forest& forest, const Weights& weights, Half half,
                   const Value& value) {
  const std::vector<Forest::Node>& nodes = forest.nodes();
  std::vector<double> reached(nodes.size());  // dispatch: the hop; combine: those behind it
  double longest = 0;
  const auto take = [&](int node, bool own, int outermost, int before, double start_us) {
    if (weights[node].bytes[half] <= 0) return 0.0;
    const Leg leg{.passage = {.kind = nodes[node].kind, .own = own, .outermost = outermost},
                  .bytes = weights[node].bytes[half],
                  .latency_us = latency_of(graph, nodes[node]),
                  .start_us = half == kDispatch ? start_us + latency_of(graph, nodes[node])
                                                : weights[node].home_start_us,
                  .before_us = before < 0 ? 0 : reached[before]};
    const double now = value(leg);
    longest = std::max(longest, now);
    return now;
  };
  const auto take_own = [&](int node) {
    for (int level = 0; level < graph.tree().num_levels(); ++level) {
      if ((nodes[node].levels >> level & 1) == 0) continue;
      const double now = take(node, true, level, half == kDispatch ? -1 : node, 0);
      if (half == kDispatch) reached[node] = std::max(reached[node], now);
    }
  };
  const auto take_children = [&](int node) {
    for (const int child : nodes[node].children) {
      const int outermost = graph.outermost_parted(nodes[node].to, nodes[child].to);
      double& to = reached[half == kDispatch ? child : node];
      to = std::max(to, take(child, false, outermost, half == kDispatch ? node : child,
                             nodes[node].last_start_us));
    }
  };
  for (int i = 0, count = static_cast<int>(nodes.size()); i < count; ++i) {
    if (half == kDispatch) take_own(count - 1 - i), take_children(count - 1 - i);
    if (half == kCombine) take_children(i), take_own(i);
  }
  return longest;
}

// When the last of all hops can move its first byte.
double last_start_us(Half half, const std::vector<const Forest*>& forests,
                     const std::vector<Weights>& weights) {
  double last = 0;
  for (std::size_t way = 0; way < forests.size(); ++way) {
    for (std::size_t i = 0; i < weights[way].size(); ++i) {
      if (weights[way][i].bytes[half] <= 0) continue;
      last = std::max(last, half == kDispatch ? forests[way]->nodes()[i].last_start_us
                                              : weights[way][i].home_start_us);
    }
  }
  return last;
}

// What hops, and what ranks do besides, put on each load.
class Work {
 public:
  // What ranks do before the first hops and behind the last, and what hosts do meanwhile.
  struct Local {
    Schedule before, after, beside;
  };

  Work(const BuildInput& input, const std::vector<const Forest*>& forests,
       const std::vector<Weights>& weights)
      : resources_(input.graph, input.classes, input.traffic.row_bytes, input.chunks) {
    make_local(input);
    hops_.emplace(input, resources_, forests, weights);
    for (const Half half : kHalves) {
      sums_[half] = hops_->sums(half);
      sums_[half].resize(resources_.list().size());
      add(half, local_[half].before, 0);
      add(half, local_[half].after, last_start_us(half, forests, weights));
      add(half, local_[half].beside, 0);
      most_[half] = hops_->links(half);
      most_[half].resize(resources_.kinds().size());
      for (std::size_t i = 0; i < sums_[half].size(); ++i)
        most_[half][resources_.list()[i].kind].add(sums_[half][i]);
    }
  }

  const Resources& resources() const noexcept { return resources_; }
  const HopSums& hops() const noexcept { return *hops_; }
  const Local& local(Half half) const { return local_[half]; }
  const std::vector<Sum>& sums(Half half) const { return sums_[half]; }   // [resources]
  const std::vector<Most>& most(Half half) const { return most_[half]; }  // [loads]

  std::vector<Load> loads() const {
    std::vector<Load> loads;
    const std::vector<std::int64_t> links = hops_->num_links();
    for (std::size_t i = 0; i < resources_.kinds().size(); ++i) {
      const LoadKind& kind = resources_.kinds()[i];
      loads.push_back({.name = kind.name,
                       .gb_s = kind.gb_s,
                       .dispatch_bytes = most_[kDispatch][i].bytes,
                       .combine_bytes = most_[kCombine][i].bytes,
                       .dispatch_us = most_[kDispatch][i].us,
                       .combine_us = most_[kCombine][i].us,
                       .instances = static_cast<int>(links[i]),
                       .source = kind.source});
    }
    for (const Resource& resource : resources_.list()) ++loads[resource.kind].instances;
    return loads;
  }

 private:
  void make_local(const BuildInput& input) {
    LocalWork local(input, resources_);
    std::array<MergedTasks, 2> before, after, beside;
    for (int rank = 0; rank < input.graph.num_ranks(); ++rank) {
      local.reorder_tokens(rank, 1, before[kDispatch], {});
      local.reorder_rows(rank, 1, before[kCombine], {});
      local.reorder_rows(rank, 1, after[kDispatch], {});
      local.reorder_tokens(rank, 1, after[kCombine], {});
    }
    local.copy_rows(beside[kDispatch], beside[kCombine]);
    for (const Half half : kHalves) {
      before[half].finish(resources_.list(), local_[half].before);
      after[half].finish(resources_.list(), local_[half].after);
      beside[half].finish(resources_.list(), local_[half].beside);
    }
  }

  void add(Half half, const Schedule& schedule, double start_us) {
    for (const Task& task : schedule.tasks) {
      for (const Use& use : task.uses) {
        const double bytes = task.bytes * use.share;
        const double us_per_byte = resources_.list()[use.resource].us_per_byte();
        sums_[half][use.resource].add(bytes, bytes * use.cost * us_per_byte,
                                      start_us + task.latency_us);
      }
    }
  }

  Resources resources_;
  std::array<Local, 2> local_;
  std::optional<HopSums> hops_;
  std::array<std::vector<Sum>, 2> sums_;
  std::array<std::vector<Most>, 2> most_;
};

// Of the times of a dispatch, or its combine.
class Bounds {
 public:
  Bounds(const BuildInput& input, const std::vector<const Forest*>& forests,
         const std::vector<Weights>& weights, const Work& work, Half half)
      : graph_(input.graph), forests_(forests), weights_(weights), work_(work), half_(half) {}

  // No order of messages is faster. `faster`: a load at twice its rate; -1: none.
  double least_us(int faster) const {
    double bound = longest([&](const Leg& leg) { return end_us(leg, faster); });
    const Work::Local& local = work_.local(half_);
    for (std::size_t rank = 0; rank < local.before.tasks.size(); ++rank) {
      const double latency_us = latencies_us(static_cast<int>(rank));
      bound = std::max(bound, alone_us(local.before.tasks[rank], faster) + latency_us);
    }
    const double last_us = last_start_us(half_, forests_, weights_);
    for (const Task& task : local.after.tasks)
      bound = std::max(bound, last_us + alone_us(task, faster));
    for (const Task& task : local.beside.tasks)
      bound = std::max(bound, task.latency_us + alone_us(task, faster));
    for (std::size_t load = 0; load < work_.most(half_).size(); ++load) {
      const Most& most = work_.most(half_)[load];
      const bool doubled = static_cast<int>(load) == faster;
      bound = std::max(bound, doubled ? most.end_doubled_us : most.end_us);
    }
    return bound;
  }

  // While a task runs, one of its resources is full, and each is for no longer than its work takes:
  // so no way of bytes takes longer than the work of all resources on it, and its latencies.
  double most_us() const {
    const Work::Local& local = work_.local(half_);
    const std::vector<std::array<double, 2>> ends = most_at_ends();
    const double hops_us = longest([&](const Leg& leg) {
      const auto& [sender_us, receiver_us] = ends[work_.hops().index(leg.passage)];
      const int link = work_.hops().pace(leg.passage).front().load;
      const double link_us = link < 0 ? 0 : work_.hops().links(half_)[link].us;
      return leg.before_us + leg.latency_us + link_us + sender_us + receiver_us;
    });
    return std::max(most_of(local.before) + hops_us + most_of(local.after), most_of(local.beside));
  }

 private:
  double end_us(const Leg& leg, int faster) const {
    double us_per_byte = 0;
    bool link = true;  // the first
    for (const auto& [load, us] : work_.hops().pace(leg.passage)) {
      const double cost = link ? work_.resources().link_cost(leg.passage.kind, leg.bytes) : 1;
      us_per_byte = std::max(us_per_byte, us * cost / (load == faster ? 2 : 1));
      link = false;
    }
    return std::max(leg.start_us + leg.bytes * us_per_byte, leg.before_us + leg.latency_us);
  }

  double alone_us(const Task& task, int faster) const {
    double most = 0;
    for (const Use& use : task.uses) {
      const Resource& resource = work_.resources().list()[use.resource];
      const double us = task.bytes * use.share * use.cost * resource.us_per_byte();
      most = std::max(most, us / (resource.kind == faster ? 2 : 1));
    }
    return most;
  }

  double work_us(const std::vector<Use>& uses) const {
    double us = 0;
    for (const Use& use : uses) us += work_.sums(half_)[use.resource].us;
    return us;
  }
  double most_of(const Schedule& schedule) const {
    double most = 0;
    for (const Task& task : schedule.tasks)
      most = std::max(most, task.latency_us + work_us(task.uses));
    return most;
  }
  // [passages]: work of all resources at one sender, and at one receiver.
  std::vector<std::array<double, 2>> most_at_ends() const {
    std::vector<std::array<double, 2>> most(work_.hops().num_passages());
    for (const HopSums::End& end : work_.hops().ends()) {
      double& us = most[end.passage][end.receives ? 1 : 0];
      us = std::max(us, work_us(end.uses));
    }
    return most;
  }

  // Of the hops of a source, one behind the other.
  double latencies_us(int source) const {
    double longest = 0;
    for (std::size_t way = 0; way < forests_.size(); ++way) {
      for (const int node : forests_[way]->of(source)) {
        const Weight& weight = weights_[way][node];
        if (weight.bytes[half_] > 0) longest = std::max(longest, weight.home_start_us);
      }
    }
    return longest;
  }

  template <typename Value>
  double longest(const Value& value) const {
    double us = 0;
    for (std::size_t way = 0; way < forests_.size(); ++way)
      us = std::max(us, longest_way(graph_, *forests_[way], weights_[way], half_, value));
    return us;
  }

  const Graph& graph_;
  const std::vector<const Forest*>& forests_;
  const std::vector<Weights>& weights_;
  const Work& work_;
  const Half half_;
};

}  // namespace

Prediction total(const BuildInput& input, const Strategy& strategy,
                 const std::vector<const Forest*>& forests, bool doubled) {
  std::vector<Weights> weights;
  for (std::size_t way = 0; way < forests.size(); ++way)
    weights.push_back(weigh(input, *forests[way], strategy.copies, strategy.ways[way].share));
  const Work work(input, forests, weights);
  const Bounds dispatch(input, forests, weights, work, kDispatch);
  const Bounds combine(input, forests, weights, work, kCombine);
  Prediction prediction;
  prediction.strategy = strategy.name;
  prediction.received_bytes = work.hops().received();
  prediction.staged_bytes = work.hops().staged();
  prediction.loads = work.loads();
  prediction.dispatch_us = prediction.dispatch_bound_us = dispatch.least_us(-1);
  prediction.combine_us = prediction.combine_bound_us = combine.least_us(-1);
  prediction.at_most_us = dispatch.most_us() + combine.most_us();
  prediction.limited_by = candidate_of(prediction).limited_by;
  for (int load = 0; doubled && load < std::ssize(prediction.loads); ++load) {
    if (prediction.loads[load].gb_s > 0)
      prediction.doubled.emplace_back(prediction.loads[load].name,
                                      dispatch.least_us(load) + combine.least_us(load));
  }
  return prediction;
}

}  // namespace ferry::internal
