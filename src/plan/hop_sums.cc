#include "plan/hop_sums.h"

#include <algorithm>
#include <optional>

namespace ferry::internal {

void Sum::add(double more_bytes, double more_us, double start_us) {
  bytes += more_bytes, us += more_us;
  first_us = std::min(first_us, start_us);
}

void HopSums::Links::add(Half half, const Sum& link) {
  auto& [most_bytes, most_work, last, last_doubled] = busiest[half];
  if (link.bytes > most_bytes.bytes) most_bytes = link;
  if (link.us > most_work.us) most_work = link;
  if (link.first_us + link.us > last.first_us + last.us) last = link;
  if (link.first_us + link.us / 2 > last_doubled.first_us + last_doubled.us / 2)
    last_doubled = link;
}

HopSums::HopSums(const BuildInput& input, Resources& resources,
                 const std::vector<WeighedForest>& forests)
    : input_(input),
      resources_(resources),
      forests_(forests),
      links_(input.graph.num_kinds()),
      received_(input.graph.num_ranks()),
      staged_(input.graph.num_ranks()) {
  const std::size_t ranks = input.graph.num_ranks();
  uses_.resize(resources.num_passages());
  known_.resize(uses_.size());
  for (Links& links : links_)
    for (auto& busiest : links.busiest) busiest.fill({.first_us = 0});
  for (const Half half : {kDispatch, kCombine}) {
    to_[half].resize(links_.size() * ranks);
    for (std::vector<Sum>& ends : ends_[half]) ends.resize(uses_.size() * ranks);
  }
  for (int from = 0; from < input.graph.num_ranks(); ++from) cross(from);
  close_ends();
}

double HopSums::received_bytes() const { return std::ranges::max(received_); }
double HopSums::staged_bytes() const { return std::ranges::max(staged_); }

// Adds the hops on which a rank sends its own tokens, and those on which it passes tokens on.
void HopSums::cross(int from) {
  for (int way = 0; way < std::ssize(forests_); ++way) {
    const Forest& forest = *forests_[way].forest;
    const auto latency = [&](int node) {
      return input_.graph.link(forest.nodes()[node].kind).latency_us;
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
  const Forest::Node& node = forests_[hops.way].forest->nodes()[hops.node];
  const Weight& weight = forests_[hops.way].weights[hops.node];
  if (weight.bytes[kDispatch] <= 0 && weight.bytes[kCombine] <= 0) return;
  const Resources::Passage passage{.kind = node.kind,
                                   .own = hops.own,
                                   .outermost = input_.graph.outermost_parted(hops.from, node.to)};
  const std::size_t at = resources_.index(passage);
  if (!known_[at]) note_uses(passage, hops.from, node.to);
  for (const Half half : {kDispatch, kCombine}) {
    if (weight.bytes[half] <= 0) continue;
    const int sender = half == kDispatch ? hops.from : node.to;
    const int receiver = half == kDispatch ? node.to : hops.from;
    const double bytes = weight.bytes[half] * hops.count;
    const double start_us = half == kDispatch ? hops.start_us : weight.combine_start_us;
    ends_[half][0][at * received_.size() + sender].add(bytes, 0, start_us);
    ends_[half][1][at * received_.size() + receiver].add(bytes, 0, start_us);
    add_to_link(hops, half, bytes, start_us);
  }
  (node.children.empty() ? received_ : staged_)[node.to] += weight.bytes[kDispatch] * hops.count;
}

void HopSums::add_to_link(const Hops& hops, Half half, double bytes, double start_us) {
  const Forest::Node& node = forests_[hops.way].forest->nodes()[hops.node];
  const Links& links = links_[node.kind];
  if (links.load < 0) return;
  const double cost =
      resources_.link_cost(node.kind, forests_[hops.way].weights[hops.node].bytes[half]);
  const std::size_t at = std::size_t(node.kind) * input_.graph.num_ranks() + node.to;
  if (to_[kDispatch][at].bytes + to_[kCombine][at].bytes == 0) touched_.push_back(at);
  to_[half][at].add(bytes, bytes * cost * links.us_per_byte, start_us);
}

void HopSums::close_links(int from) {
  const std::size_t ranks = input_.graph.num_ranks();
  for (const std::size_t at : touched_) {
    Links& links = links_[at / ranks];
    const std::size_t to = at % ranks;
    for (const Half half : {kDispatch, kCombine}) {
      Sum& sum = to_[half][at];
      if (sum.bytes <= 0) continue;
      links.add(half, sum);
      const std::size_t link = half == kDispatch ? from * ranks + to : to * ranks + from;
      if (!links.used[link]) ++links.num_used;
      links.used[link] = true;
      sum = {};
    }
  }
  touched_.clear();
}

void HopSums::close_ends() {
  const auto moves = [](const End& end) { return end.sums[0].bytes + end.sums[1].bytes > 0; };
  for (int rank = 0; rank < input_.graph.num_ranks(); ++rank) {
    for (std::size_t at = 0; at < uses_.size(); ++at) {
      const std::size_t end = at * received_.size() + rank;
      for (const bool receives : {false, true}) {
        End used{.passage = at, .receives = receives};
        for (const Half half : {kDispatch, kCombine}) used.sums[half] = ends_[half][receives][end];
        if (!moves(used)) continue;
        if (receives)
          resources_.add_receiver(rank, resources_.passage(at), used.uses);
        else
          resources_.add_sender(rank, resources_.passage(at), used.uses);
        used_.push_back(std::move(used));
      }
    }
  }
}

void HopSums::note_uses(const Resources::Passage& passage, int from, int to) {
  Links& links = links_[passage.kind];
  if (const std::optional<LoadKind> link = resources_.link_load(passage.kind)) {
    links.load = resources_.add_kind(*link);
    links.us_per_byte = link->gb_s > 0 ? 1 / (link->gb_s * kBytesPerUs) : 0;
    links.used.resize(received_.size() * received_.size());
  }
  const std::size_t at = resources_.index(passage);
  known_[at] = true;
  resources_.add_sender(from, passage, uses_[at]);
  resources_.add_receiver(to, passage, uses_[at]);
}

}  // namespace ferry::internal
