#include "plan/resources.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace ferry::internal {

namespace {

// The rate for messages of this size. It is interpolated between the points of a curve, and
// constant outside of them.
double rate_at(const std::vector<std::array<double, 2>>& curve, double bytes) {
  if (bytes <= curve.front()[0]) return curve.front()[1];
  for (std::size_t i = 1; i < curve.size(); ++i) {
    const auto [x0, y0] = curve[i - 1];
    const auto [x1, y1] = curve[i];
    if (bytes < x1) return y0 + (y1 - y0) * (bytes - x0) / (x1 - x0);
  }
  return curve.back()[1];
}

double full_rate(const Machine::Link& link) {
  return link.gb_s > 0 || link.curve.empty() ? link.gb_s : link.curve.back()[1];
}

}  // namespace

std::vector<Node> nodes_of(const Graph& graph, const Classes& classes) {
  const Topology& tree = graph.tree();
  if (graph.machine().host.together) {
    Node all;
    all.ranks.resize(tree.num_ranks());
    std::iota(all.ranks.begin(), all.ranks.end(), 0);
    return {all};
  }
  const bool equal = classes.count() == 1;
  std::vector<Node> nodes(equal ? 1 : tree.num_nodes());
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const std::span<const int> ranks = tree.node_ranks(static_cast<int>(node));
    nodes[node] = {{ranks.begin(), ranks.end()}, equal ? tree.num_nodes() : 1};
  }
  return nodes;
}

Resources::Resources(const Graph& graph, const Classes& classes, double row_bytes, int chunks)
    : graph_(graph), classes_(classes), row_bytes_(row_bytes), chunks_(chunks) {
  for (int level = 0; level < graph.tree().num_levels(); ++level) {
    groups_.push_back(parts(graph.groups(level)));
    sharers_.push_back(parts(graph.sharers(level)));
  }
}

Resources::Parts Resources::parts(const std::vector<int>& part_of) const {
  std::vector<int> lowest(1 + std::ranges::max(part_of), classes_.count());
  for (std::size_t rank = 0; rank < part_of.size(); ++rank)
    lowest[part_of[rank]] = std::min(lowest[part_of[rank]], classes_.of[rank]);
  Parts parts{.class_of = {}, .num_equal = std::vector<std::int64_t>(classes_.count())};
  for (const int part : part_of) parts.class_of.push_back(lowest[part]);
  for (const int lowest_class : lowest) ++parts.num_equal[lowest_class];
  return parts;
}

std::vector<Use> Resources::of(const Hop& hop, bool combine, double bytes) {
  const int from = combine ? hop.to : hop.from, to = combine ? hop.from : hop.to;
  const Passage passage{
      .kind = hop.kind, .own = hop.own, .outermost = graph_.outermost_parted(hop.from, hop.to)};
  std::vector<Use> uses;
  if (const std::optional<LoadKind> link = link_load(hop.kind)) {
    const Key key{.what = What::kLink,
                  .index = hop.kind,
                  .a = classes_.of[from],
                  .direction = graph_.turn(from, to, hop.kind),
                  .seen = classes_.seen(from, to)};
    uses.push_back({.resource = find(key, *link), .cost = link_cost(hop.kind, bytes)});
  }
  add_sender(from, passage, uses);
  add_receiver(to, passage, uses);
  return uses;
}

std::size_t Resources::num_passages() const {
  return std::size_t{2} * graph_.num_kinds() * graph_.tree().num_levels();
}

std::size_t Resources::index(const Passage& passage) const {
  const std::size_t levels = graph_.tree().num_levels();
  return (passage.kind * 2 + (passage.own ? 1 : 0)) * levels + passage.outermost;
}

Resources::Passage Resources::passage(std::size_t index) const {
  const std::size_t levels = graph_.tree().num_levels();
  return {.kind = static_cast<int>(index / levels / 2),
          .own = index / levels % 2 == 1,
          .outermost = static_cast<int>(index % levels)};
}

std::optional<LoadKind> Resources::link_load(int kind) const {
  const Machine::Link& link = graph_.link(kind);
  const bool port_alone = full_rate(link) <= 0 && !link.port.empty();
  if (port_alone) return std::nullopt;
  return LoadKind{link.name, full_rate(link), link.source};
}

double Resources::link_cost(int kind, double bytes) const {
  const Machine::Link& link = graph_.link(kind);
  return link.curve.empty() ? 1 : full_rate(link) / rate_at(link.curve, bytes / chunks_);
}

void Resources::add_sender(int rank, const Passage& passage, std::vector<Use>& uses) {
  const Machine::Link& link = graph_.link(passage.kind);
  if (link.issue_us > 0) {
    const Key issuer{
        .what = What::kIssue, .index = graph_.link_index(passage.kind), .a = classes_.of[rank]};
    const double rows_gb_s = row_bytes_ / link.issue_us / kBytesPerUs;
    uses.push_back({.resource = find(issuer, {link.name + " issue", rows_gb_s, link.source})});
  }
  add_port(rank, passage, true, uses);
  add_levels(rank, passage.outermost, true, uses);
  const std::vector<Machine::Engine>& engines = graph_.machine().engines;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    if (!(passage.own ? engines[i].sends : engines[i].relays)) continue;
    const Key key{.what = What::kEngine, .index = static_cast<int>(i), .a = classes_.of[rank]};
    uses.push_back({.resource = find(key, {engines[i].name, engines[i].gb_s, engines[i].source})});
  }
}

void Resources::add_receiver(int rank, const Passage& passage, std::vector<Use>& uses) {
  add_port(rank, passage, false, uses);
  add_levels(rank, passage.outermost, false, uses);
}

// Adds the port of a passage. A message between two ranks of a group does not cross the port of the
// group, with one exception: if all links of this kind are inside such groups, the group shares the
// port as a switch.
void Resources::add_port(int rank, const Passage& passage, bool out, std::vector<Use>& uses) {
  const std::vector<Machine::Port>& ports = graph_.machine().ports;
  const int outermost_of_link = graph_.outermost(graph_.link_index(passage.kind));
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ports[i].name != graph_.link(passage.kind).port) continue;
    const int level = port_level(ports[i]);
    if (level >= 0 && outermost_of_link <= level && passage.outermost > level) continue;
    const bool half = ports[i].duplex == Machine::Duplex::kHalf;
    const Key key{.what = What::kPort,
                  .index = static_cast<int>(i),
                  .a = level < 0 ? classes_.of[rank] : groups_[level].class_of[rank],
                  .direction = half || out ? 0 : 1};
    uses.push_back({.resource = find(key, {ports[i].name, ports[i].gb_s, ports[i].source})});
  }
}

// Adds the links of the groups of the tree, which also limit hops over links between ranks.
void Resources::add_levels(int rank, int outermost, bool out, std::vector<Use>& uses) {
  const Topology& tree = graph_.tree();
  for (int level = outermost; level < tree.num_levels(); ++level) {
    const Topology::Level& at = tree.level(level);
    if (at.link.total_gb_s() <= 0) continue;
    const Key key{.what = What::kLevel,
                  .index = level,
                  .a = sharers_[level].class_of[rank],
                  .direction = out ? 0 : 1};
    uses.push_back({.resource = find(key, {at.name, at.link.total_gb_s(), "stated"})});
  }
}

std::vector<Use> Resources::reordering(int rank) {
  std::vector<Use> uses;
  const std::vector<Machine::Engine>& engines = graph_.machine().engines;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    if (!engines[i].reorders) continue;
    const Key key{.what = What::kEngine, .index = static_cast<int>(i), .a = classes_.of[rank]};
    uses.push_back({.resource = find(key, {engines[i].name, engines[i].gb_s, engines[i].source})});
  }
  return uses;
}

Use Resources::host(int rank, double us_per_byte) {
  const Machine::Host& host = graph_.machine().host;
  const int level = host_level();
  const double gb_s = std::max({host.dispatch.gb_s[0], host.combine.gb_s[0], host.network_gb_s});
  const Key key{
      .what = What::kHost, .index = 0, .a = level < 0 ? 0 : groups_[level].class_of[rank]};
  return {.resource = find(key, {"copies", gb_s, host.source}),
          .cost = us_per_byte * gb_s * kBytesPerUs};
}

int Resources::find(const Key& key, const LoadKind& kind) {
  const auto [found, is_new] = ids_.try_emplace(key, static_cast<int>(list_.size()));
  return is_new ? add(kind, instances(key)) : found->second;
}

int Resources::add(const LoadKind& kind, std::int64_t instances) {
  list_.push_back(
      {.kind = add_kind(kind), .capacity = kind.gb_s * kBytesPerUs, .instances = instances});
  return static_cast<int>(list_.size()) - 1;
}

int Resources::add_kind(const LoadKind& kind) {
  const auto same = std::ranges::find(kinds_, kind.name, &LoadKind::name);
  if (same == kinds_.end()) return kinds_.push_back(kind), static_cast<int>(kinds_.size()) - 1;
  return static_cast<int>(same - kinds_.begin());
}

int Resources::port_level(const Machine::Port& port) const {
  return port.level.empty() ? -1 : graph_.tree().find_level(port.level);
}

int Resources::host_level() const {
  return graph_.machine().host.together ? -1 : graph_.tree().find_level(Topology::kHost);
}

std::int64_t Resources::instances(const Key& key) const {
  if (classes_.each_alone()) return 1;
  switch (key.what) {
    case What::kEngine:
    case What::kIssue: return classes_.size[key.a];
    case What::kPort: {
      const int level = port_level(graph_.machine().ports[key.index]);
      return level < 0 ? classes_.size[key.a] : groups_[level].num_equal[key.a];
    }
    case What::kHost: return host_level() < 0 ? 1 : groups_[host_level()].num_equal[key.a];
    case What::kLevel: return sharers_[key.index].num_equal[key.a];
    case What::kLink: break;
  }
  const int rank = classes_.first[key.a];
  std::int64_t joined = 0;
  for (const int other : graph_.neighbours(rank, key.index)) {
    joined += classes_.seen(rank, other) == key.seen &&
                      graph_.turn(rank, other, key.index) == key.direction
                  ? 1
                  : 0;
  }
  return joined * classes_.size[key.a];
}

}  // namespace ferry::internal
