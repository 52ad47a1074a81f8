#include "plan/hop_sums.h"

#include <optional>

namespace ferry::internal {

HopSums::HopSums(const BuildInput& input, Resources& resources,
                 const std::vector<const Forest*>& forests,
                 const std::vector<std::vector<Weight>>& weights)
    : input_(input),
      resources_(resources),
      forests_(forests),
      weights_(weights),
      kinds_(input.graph.num_kinds()),
      received_(input.graph.num_ranks()),
      staged_(input.graph.num_ranks()) {
  const std::size_t ranks = input.graph.num_ranks();
  paces_.resize(kinds_.size() * 2 * input.graph.tree().num_levels());
  for (const Half half : {kDispatch, kCombine}) {
    to_[half].resize(kinds_.size() * ranks);
    for (std::vector<Sum>& ends : ends_[half]) ends.resize(paces_.size() * ranks);
  }
  for (int from = 0; from < input.graph.num_ranks(); ++from) cross(from);
  close_ends();
}

std::vector<std::int64_t> HopSums::num_links() const {
  std::vector<std::int64_t> links(resources_.kinds().size());
  for (const LinkKind& kind : kinds_)
    if (kind.pace.load >= 0) links[kind.pace.load] += kind.num_used;
  return links;
}

// What a rank sends as a source, and what it passes on.
void HopSums::cross(int from) {
  for (int way = 0; way < std::ssize(forests_); ++way) {
    const Forest& forest = *forests_[way];
    const auto latency = [&](int node) {
      return input_.graph.machine().links[forest.nodes()[node].kind].latency_us;
    };
    for (const int node : forest.of(from))
      add({.from = from, .way = way, .node = node, .start_us = latency(node)});
    for (const int before : forest.passing_on(from)) {
      const auto& [sources, start_us] =
          std::pair{forest.nodes()[before].sources, forest.nodes()[before].start_us};
      for (const int node : forest.nodes()[before].children) {
        add({.from = from,
             .way = way,
             .node = node,
             .count = sources,
             .start_us = start_us + latency(node),
             .own = false});
      }
    }
  }
  close_links(from);
}

void HopSums::add(const Hops& hops) {
  const Forest::Node& node = forests_[hops.way]->nodes()[hops.node];
  const Weight& weight = weights_[hops.way][hops.node];
  if (weight.bytes[kDispatch] <= 0 && weight.bytes[kCombine] <= 0) return;
  const Resources::Passage passage{.kind = node.kind,
                                   .own = hops.own,
                                   .outermost = input_.graph.outermost_parted(hops.from, node.to)};
  const std::size_t at = index(passage);
  if (paces_[at].empty()) make_pace(passage, hops.from, node.to);
  for (const Half half : {kDispatch, kCombine}) {
    if (weight.bytes[half] <= 0) continue;
    const int sender = half == kDispatch ? hops.from : node.to;
    const int receiver = half == kDispatch ? node.to : hops.from;
    const double bytes = weight.bytes[half] * hops.count;
    const double start_us = half == kDispatch ? hops.start_us : weight.home_start_us;
    ends_[half][0][at * received_.size() + sender].add(bytes, 0, start_us);
    ends_[half][1][at * received_.size() + receiver].add(bytes, 0, start_us);
    add_to_link(hops, half, bytes, start_us);
  }
  (node.children.empty() ? received_ : staged_)[node.to] += weight.bytes[kDispatch] * hops.count;
}

void HopSums::add_to_link(const Hops& hops, Half half, double bytes, double start_us) {
  const Forest::Node& node = forests_[hops.way]->nodes()[hops.node];
  const LinkKind& kind = kinds_[node.kind];
  if (kind.pace.load < 0) return;
  const double cost = resources_.link_cost(node.kind, weights_[hops.way][hops.node].bytes[half]);
  const std::size_t at = std::size_t(node.kind) * input_.graph.num_ranks() + node.to;
  if (to_[kDispatch][at].bytes + to_[kCombine][at].bytes == 0) touched_.push_back(at);
  to_[half][at].add(bytes, bytes * cost * kind.pace.us_per_byte, start_us);
}

void HopSums::close_links(int from) {
  const std::size_t ranks = input_.graph.num_ranks();
  for (const std::size_t at : touched_) {
    LinkKind& kind = kinds_[at / ranks];
    const std::size_t to = at % ranks;
    for (const Half half : {kDispatch, kCombine}) {
      Sum& sum = to_[half][at];
      if (sum.bytes <= 0) continue;
      links_[half][kind.pace.load].add(sum);
      const std::size_t link = half == kDispatch ? from * ranks + to : to * ranks + from;
      if (!kind.used[link]) ++kind.num_used;
      kind.used[link] = true;
      sum = {};
    }
  }
  touched_.clear();
}

void HopSums::close_ends() {
  for (int rank = 0; rank < input_.graph.num_ranks(); ++rank) {
    for (std::size_t at = 0; at < paces_.size(); ++at) {
      const std::size_t end = at * received_.size() + rank;
      for (const bool receives : {false, true}) {
        if (ends_[kDispatch][receives][end].bytes + ends_[kCombine][receives][end].bytes == 0)
          continue;
        used_.push_back({.passage = at, .receives = receives});
        std::vector<Use>& uses = used_.back().uses;
        if (receives)
          resources_.add_receiver(rank, passage(at), uses);
        else
          resources_.add_sender(rank, passage(at), uses);
        for (const Half half : {kDispatch, kCombine})
          for (const Use& use : uses) add_to_resource(use, half, ends_[half][receives][end]);
      }
    }
  }
}

void HopSums::add_to_resource(const Use& use, Half half, const Sum& sum) {
  sums_[half].resize(resources_.list().size());
  if (sum.bytes <= 0) return;
  const double us_per_byte = resources_.list()[use.resource].us_per_byte();
  sums_[half][use.resource].add(sum.bytes, sum.bytes * us_per_byte, sum.first_us);
}

void HopSums::make_pace(const Resources::Passage& passage, int from, int to) {
  LinkKind& kind = kinds_[passage.kind];
  if (const std::optional<LoadKind> link = resources_.link_load(passage.kind)) {
    const Resource resource{.kind = resources_.add_kind(*link),
                            .capacity = link->gb_s * kBytesPerUs};
    kind.pace = {resource.kind, resource.us_per_byte()};
    kind.used.resize(received_.size() * received_.size());
  }
  std::vector<Pace>& paces = paces_[index(passage)];
  paces.push_back(kind.pace);
  std::vector<Use> uses;
  resources_.add_sender(from, passage, uses);
  resources_.add_receiver(to, passage, uses);
  for (const Use& use : uses) {
    const Resource& resource = resources_.list()[use.resource];
    paces.push_back({resource.kind, resource.us_per_byte()});
  }
  for (std::vector<Most>& links : links_) links.resize(resources_.kinds().size());
}

std::size_t HopSums::index(const Resources::Passage& passage) const {
  const std::size_t levels = input_.graph.tree().num_levels();
  return (passage.kind * 2 + (passage.own ? 1 : 0)) * levels + passage.outermost;
}

Resources::Passage HopSums::passage(std::size_t index) const {
  const std::size_t levels = input_.graph.tree().num_levels();
  return {.kind = static_cast<int>(index / levels / 2),
          .own = index / levels % 2 == 1,
          .outermost = static_cast<int>(index % levels)};
}

}  // namespace ferry::internal
