// Draws a topology: as SVG with nested boxes, or as DOT with clusters. Calls report.cc for texts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/topology/parts.h"
#include "topology/mate.h"

namespace ferry::tools {

namespace {

constexpr int kRank = 30;   // side of the square of a rank
constexpr int kGap = 8;     // space between boxes, and between a box and its contents
constexpr int kTitle = 20;  // height of the title of a box
constexpr int kLetter = 7;  // approximate width of a letter
constexpr int kLine = 18;   // height of a line of text below the picture

struct Picture {
  int width = 0, height = 0;
  std::string svg;
};

std::string title_of(const Topology& topology, int level, int group) {
  const std::string link = link_text(topology.level(level).link);
  return fmt::format("{} {}{}{}", topology.level(level).name, group, link.empty() ? "" : ": ",
                     link);
}

int position_of(const Topology& topology, int rank) {
  const auto node = topology.node_ranks(topology.node_of(rank));
  return static_cast<int>(std::ranges::lower_bound(node, rank) - node.begin());
}

int most_ranks_of_a_node(const Topology& topology) {
  std::size_t most = 0;
  for (int node = 0; node < topology.num_nodes(); ++node)
    most = std::max(most, topology.node_ranks(node).size());
  return static_cast<int>(most);
}

// The hue of a rank, from 0 to 1. Ranks with the same position in their nodes have the same hue.
double hue_of(const Topology& topology, int rank, int most_ranks) {
  return static_cast<double>(position_of(topology, rank)) / most_ranks;
}

struct Groups {
  int begin, end;
};

// Returns the groups of level + 1 that are inside `group`.
Groups inside(const Topology& topology, int level, int group) {
  const auto ranks = topology.members(group, level);
  return {topology.group_of(ranks.front(), level + 1),
          topology.group_of(ranks.back(), level + 1) + 1};
}

// Draws the SVG.
class Boxes {
 public:
  explicit Boxes(const Topology& topology)
      : topology_(topology), most_ranks_(most_ranks_of_a_node(topology)) {}

  // Draws the groups [begin, end) of a level, side by side or in a square.
  Picture grid(int level, Groups groups) const {
    const bool ranks = level + 1 == topology_.num_levels();
    const int count = groups.end - groups.begin;
    const int columns =
        count <= (ranks ? 8 : 4) ? count : static_cast<int>(std::ceil(std::sqrt(count)));
    std::vector<Picture> cells;
    Picture all;
    for (int group = groups.begin; group < groups.end; ++group) {
      cells.push_back(ranks ? rank(topology_.members(group, level)[0]) : box(level, group));
      all.width = std::max(all.width, cells.back().width + kGap);
      all.height = std::max(all.height, cells.back().height + kGap);
    }
    for (int cell = 0; cell < count; ++cell) {
      all.svg +=
          fmt::format("<g transform=\"translate({},{})\">\n{}</g>\n", cell % columns * all.width,
                      cell / columns * all.height, cells[cell].svg);
    }
    all.width = all.width * columns - kGap;
    all.height = all.height * ((count + columns - 1) / columns) - kGap;
    return all;
  }

 private:
  Picture rank(int rank) const {
    return {kRank, kRank,
            fmt::format(
                "<rect width=\"{0}\" height=\"{0}\" rx=\"4\" fill=\"hsl({1:.0f},70%,82%)\" "
                "stroke=\"#555\"/>\n<text x=\"{2}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
                kRank, 360 * hue_of(topology_, rank, most_ranks_), kRank / 2, kRank / 2 + 4, rank)};
  }

  Picture box(int level, int group) const {
    const Picture content = grid(level + 1, inside(topology_, level, group));
    const std::string title = title_of(topology_, level, group);
    const int width = std::max(content.width, kLetter * static_cast<int>(title.size())) + 2 * kGap;
    const int height = content.height + kTitle + 2 * kGap;
    const bool host = topology_.level(level).name == Topology::kHost;
    return {width, height,
            fmt::format("<rect width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{}\" stroke=\"#555\" "
                        "stroke-width=\"{}\"/>\n<text x=\"{}\" y=\"{}\">{}</text>\n"
                        "<g transform=\"translate({},{})\">\n{}</g>\n",
                        width, height, host ? "#eef2f7" : "none", host ? 2 : 1, kGap, kTitle - 4,
                        title, kGap, kTitle + kGap, content.svg)};
  }

  const Topology& topology_;
  const int most_ranks_;
};

// Adds a Graphviz cluster for each group.
void add_cluster(const Topology& topology, int level, Groups groups, std::string& dot) {
  const bool ranks = level + 1 == topology.num_levels();
  const int most_ranks = ranks ? most_ranks_of_a_node(topology) : 0;
  const std::string indent(2 * level + 2, ' ');
  for (int group = groups.begin; group < groups.end; ++group) {
    if (ranks) {
      const int rank = topology.members(group, level)[0];
      dot += fmt::format("{}r{} [label=\"{}\" fillcolor=\"{:.3f} 0.25 1\"];\n", indent, rank, rank,
                         hue_of(topology, rank, most_ranks));
      continue;
    }
    dot += fmt::format("{0}subgraph cluster_{1}_{2} {{\n{0}  label=\"{3}\";\n", indent,
                       topology.level(level).name, group, title_of(topology, level, group));
    add_cluster(topology, level + 1, inside(topology, level, group), dot);
    dot += indent + "}\n";
  }
}

// Adds lines between the mates of neighbouring groups.
void add_mates(const Topology& topology, int level, std::string& dot) {
  int next = 0;
  for (const int siblings : topology.level(level).fanout) {
    for (const int end = next++ + siblings; next < end; ++next) {
      const auto ranks = topology.members(next - 1, level), mates = topology.members(next, level);
      for (std::size_t position = 0; position < ranks.size(); ++position)
        dot += fmt::format("  r{} -- r{} [style=dashed];\n", ranks[position],
                           internal::mate_of(topology, level, ranks[position], position, mates));
    }
  }
}

}  // namespace

std::string topology_svg(const Topology& topology, const std::vector<std::string>& lines) {
  const Picture all = Boxes(topology).grid(0, {0, topology.level(0).num_groups()});
  int width = all.width, y = all.height + 2 * kGap;
  std::string text;
  for (const std::string& line : lines) {
    text += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", kGap, y += kLine, line);
    width = std::max(width, kLetter * static_cast<int>(line.size()));
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"white\"/>\n<g transform=\"translate({2},{2})\">\n{3}</g>\n{4}</svg>\n",
      width + 2 * kGap, y + 2 * kGap, kGap, all.svg, text);
}

std::string topology_dot(const Topology& topology, const std::vector<std::string>& lines) {
  std::string dot =
      fmt::format("graph topology {{\n  node [shape=box style=filled];\n  label=\"{}\";\n",
                  fmt::join(lines, "\\l"));
  add_cluster(topology, 0, {0, topology.level(0).num_groups()}, dot);
  for (int level = 0; level <= topology.find_level(Topology::kHost); ++level)
    add_mates(topology, level, dot);
  return dot + "}\n";
}

}  // namespace ferry::tools
