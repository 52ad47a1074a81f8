// Machine::resized: the same kind of machine with more ranks, or fewer. Called by tools and Python.
#include <fmt/format.h>

#include <algorithm>

#include "ferry/plan.h"
#include "ferry/status.h"

namespace ferry {

// As many groups of the outermost level as hold the ranks, or the first ranks of one group.
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
  int left = num_ranks;
  for (int i = 0, inside = tree.num_ranks(); i < tree.num_levels(); ++i) {
    const Topology::Level& level = tree.level(i);
    inside /= level.fanout[0];
    const int count = std::max(1, left / inside);
    if (count > level.fanout[0] && i > 0) refuse("its inner groups are too small");
    if (left % inside != 0 && inside % left != 0)
      refuse(fmt::format("a {} has {}", level.name, inside));
    left = std::min(left, inside);
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
  return resized;
}

}  // namespace ferry
