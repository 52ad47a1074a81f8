#include "routing/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ferry/status.h"

namespace ferry::internal {

namespace {

void check_divides(const char* what, int count, int parts) {
  if (parts >= 1 && count % parts == 0) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{}: {} is not divisible by {}", what, count, parts));
}

void check_slots(int num_slots, int experts) {
  if (num_slots >= experts) return;
  throw Error(
      Code::kInvalidArgument,
      fmt::format("{} replicas of {} experts: need at least one of each", num_slots, experts));
}

void check_loads(std::span<const float> loads) {
  for (std::size_t expert = 0; expert < loads.size(); ++expert) {
    if (loads[expert] >= 0 && std::isfinite(loads[expert])) continue;
    throw Error(Code::kInvalidArgument,
                fmt::format("the load of expert {} is {}, need a finite number of at least 0",
                            expert, loads[expert]));
  }
}

int size_of(std::span<const float> values) { return static_cast<int>(values.size()); }

// The experts, sorted by the node that holds their group.
std::vector<int> experts_by_node(std::span<const float> loads, const BalanceShape& shape) {
  const int of_group = size_of(loads) / shape.num_groups;
  std::vector<float> groups(shape.num_groups);
  for (int i = 0; i < size_of(loads); ++i) groups[i / of_group] += loads[i];
  const Packed nodes = pack_evenly(groups, shape.num_nodes);
  std::vector<int> experts(loads.size());
  for (int i = 0; i < size_of(loads); ++i) {
    const int group = i / of_group;
    const int place =
        nodes.pack[group] * (shape.num_groups / shape.num_nodes) + nodes.position[group];
    experts[place * of_group + i % of_group] = i;
  }
  return experts;
}

// Fills the slots of the ranks of one node from the loads of the experts of the node.
ReplicaSlots balance_node(std::span<const float> loads, int num_slots, int num_ranks) {
  const ReplicaSlots replicas = replicate(loads, num_slots);
  FERRY_CHECK(std::ssize(replicas.expert), ==, num_slots);
  std::vector<int> counts(loads.size());
  for (const int expert : replicas.expert) ++counts[expert];
  std::vector<float> shares;
  for (const int expert : replicas.expert)
    shares.push_back(loads[expert] / static_cast<float>(counts[expert]));
  const Packed ranks = pack_evenly(shares, num_ranks);
  ReplicaSlots slots{std::vector<int>(num_slots, -1), std::vector<int>(num_slots)};
  for (int i = 0; i < num_slots; ++i) {
    const int slot = ranks.pack[i] * (num_slots / num_ranks) + ranks.position[i];
    slots.expert[slot] = replicas.expert[i];
    slots.replica[slot] = replicas.replica[i];
  }
  FERRY_CHECK(std::ranges::count(slots.expert, -1), ==, 0);  // each slot holds one replica
  return slots;
}

}  // namespace

Packed pack_evenly(std::span<const float> weights, int num_packs) {
  const int items = size_of(weights);
  if (num_packs < 1 || items % num_packs != 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} items in {} packs: need packs of equal size", items, num_packs));
  }
  std::vector<int> order(items);
  std::iota(order.begin(), order.end(), 0);
  Packed packed{order, std::vector<int>(items)};
  const int room = items / num_packs;
  if (room == 1) return packed;
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return weights[a] > weights[b]; });
  std::vector<double> sums(num_packs);
  std::vector<int> counts(num_packs);
  for (const int item : order) {
    int least = -1;
    for (int pack = 0; pack < num_packs; ++pack)
      if (counts[pack] < room && (least < 0 || sums[pack] < sums[least])) least = pack;
    packed.pack[item] = least;
    packed.position[item] = counts[least]++;
    sums[least] += weights[item];
  }
  FERRY_CHECK(std::ranges::count(counts, room), ==, num_packs);
  return packed;
}

ReplicaSlots replicate(std::span<const float> loads, int num_slots) {
  const int experts = size_of(loads);
  if (experts < 1) throw Error(Code::kInvalidArgument, "no experts to replicate");
  check_slots(num_slots, experts);
  ReplicaSlots slots{std::vector<int>(experts), std::vector<int>(experts)};
  std::iota(slots.expert.begin(), slots.expert.end(), 0);
  std::vector<int> counts(experts, 1);
  const auto share = [&](int expert) { return loads[expert] / static_cast<float>(counts[expert]); };
  while (std::ssize(slots.expert) < num_slots) {
    int busiest = 0;
    for (int expert = 1; expert < experts; ++expert)
      if (share(expert) > share(busiest)) busiest = expert;
    slots.expert.push_back(busiest);
    slots.replica.push_back(counts[busiest]++);
  }
  return slots;
}

ReplicaSlots balance(std::span<const float> loads, BalanceShape shape) {
  check_loads(loads);
  check_slots(shape.num_slots, size_of(loads));
  if (shape.num_nodes < 1 || shape.num_groups % shape.num_nodes != 0)
    shape.num_groups = shape.num_nodes = 1;
  check_divides("experts in groups", size_of(loads), shape.num_groups);
  check_divides("GPUs on nodes", shape.num_ranks, shape.num_nodes);
  check_divides("replicas on GPUs", shape.num_slots, shape.num_ranks);
  const std::vector<int> experts = experts_by_node(loads, shape);
  const int on_node = size_of(loads) / shape.num_nodes;
  ReplicaSlots slots;
  for (int node = 0; node < shape.num_nodes; ++node) {
    const std::span here = std::span(experts).subspan(node * on_node, on_node);
    std::vector<float> of_node;
    for (const int expert : here) of_node.push_back(loads[expert]);
    const ReplicaSlots found =
        balance_node(of_node, shape.num_slots / shape.num_nodes, shape.num_ranks / shape.num_nodes);
    for (const int expert : found.expert) slots.expert.push_back(here[expert]);
    slots.replica.insert(slots.replica.end(), found.replica.begin(), found.replica.end());
  }
  FERRY_CHECK(std::ssize(slots.expert), ==, shape.num_slots);
  FERRY_CHECK(slots.replica.size(), ==, slots.expert.size());
  return slots;
}

}  // namespace ferry::internal
