// Machine::resized: makes a machine of the same kind with more or fewer ranks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "ferry/plan.h"
#include "ferry/status.h"
#include "plan/graph.h"

namespace ferry {

namespace {

// The size of the groups whose positions a link names. 0 if the level does not exist.
int group_size(const Topology& tree, const Machine::Link& link) {
  if (link.level.empty()) return tree.num_ranks();
  const int level = tree.find_level(link.level);
  return level < 0 ? 0 : tree.num_ranks() / tree.level(level).num_groups();
}

// Removes the pairs that have an end outside of `part`, which is the first ranks of `whole`.
// Removes the ports of removed links, too.
void remove_cut_links(const Machine& whole, Machine& part) {
  for (Machine::Link& link : part.links) {
    const int size = group_size(part.tree, link), before = group_size(whole.tree, link);
    std::vector<std::array<int, 2>> pairs = internal::joined_pairs(link, size);
    const auto cut = [&](const std::array<int, 2>& pair) {
      const int end = std::ranges::max(pair);
      return end >= size && end < before;
    };
    if (std::erase_if(pairs, cut) == 0) continue;
    link.shape = Machine::Shape::kPairs;
    link.mask = 0;
    link.pairs = std::move(pairs);
  }
  std::erase_if(part.links, [](const Machine::Link& link) {
    return link.shape == Machine::Shape::kPairs && link.pairs.empty();
  });
  std::erase_if(part.ports, [&](const Machine::Port& port) {
    return std::ranges::count(part.links, port.name, &Machine::Link::port) == 0;
  });
}

}  // namespace

// Takes as many groups of the outermost level as the ranks need, or the first ranks of one group.
Machine Machine::resized(int num_ranks) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} ranks do not fit machine '{}': {}", num_ranks, name, why));
  };
  if (num_ranks == tree.num_ranks()) return *this;
  if (num_ranks < 1) refuse("at least 1");
  const std::string text = tree.to_text();
  const Topology::Level& outer = tree.level(0);
  for (int i = 0; i < tree.num_levels(); ++i)
    if (!tree.level(i).link.mates.empty()) refuse("its mates are joined by pairs");
  const int groups = outer.num_groups(), size = tree.num_ranks() / groups;
  for (int i = 0; i < tree.num_levels(); ++i) {
    const std::vector<int>& fanout = tree.level(i).fanout;
    if (std::ranges::count(fanout, fanout[0]) != std::ssize(fanout)) refuse("its groups differ");
  }
  if (num_ranks % size != 0 && size % num_ranks != 0)
    refuse(fmt::format("a {} has {}", outer.name, size));
  std::string levels;
  int remaining = num_ranks;
  for (int i = 0, inside = tree.num_ranks(); i < tree.num_levels(); ++i) {
    const Topology::Level& level = tree.level(i);
    inside /= level.fanout[0];
    const int count = std::max(1, remaining / inside);
    if (count > level.fanout[0] && i > 0) refuse("its inner groups are too small");
    if (remaining % inside != 0 && inside % remaining != 0)
      refuse(fmt::format("a {} has {}", level.name, inside));
    remaining = std::min(remaining, inside);
    std::string properties;
    const Topology::Link& link = level.link;
    if (link.mates_xor != 0) properties += fmt::format("@{}xor", link.mates_xor);
    if (link.count != 1) properties += fmt::format("@{}links", link.count);
    if (link.bandwidth_gb_s > 0) properties += fmt::format("@{}GB/s", link.bandwidth_gb_s);
    if (link.latency_us > 0) properties += fmt::format("@{}us", link.latency_us);
    if (const auto& second = link.second_way) {
      properties += fmt::format("@also{}xor", second->mates_xor);
      if (second->bandwidth_gb_s > 0) properties += fmt::format("{}GB/s", second->bandwidth_gb_s);
    }
    levels += fmt::format("{}{}:{}{}", levels.empty() ? "" : ",", level.name, count, properties);
  }
  Machine resized = *this;
  resized.tree = Topology::parse(levels);
  remove_cut_links(*this, resized);
  if (num_ranks > 1 && resized.links.empty() && !links.empty()) refuse("no link is between them");
  return resized;
}

}  // namespace ferry
