// Runs `ferry topology`: parses its options and finds the topology. Calls the functions of parts.h.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>

#include "ferry/config.h"
#include "ferry/status.h"
#include "tools/commands.h"
#include "tools/page.h"
#include "tools/refuse.h"
#include "tools/shape_options.h"
#include "tools/topology/parts.h"

namespace ferry::tools {

namespace {

struct TopologyOptions {
  std::string text;  // empty: use the topology of this host
  bool found = false;
  bool job = false;  // use the topology of all hosts of this job
  int ranks = 0;     // 0: one rank for each hardware thread
  ExchangeConfig config = {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8};
  std::string picture;  // a file name; empty: none
  std::string page;     // the file name of an HTML page; empty: none
  bool json = false;
};

// Returns nothing on the ranks of a job that do not print.
std::optional<Topology> read_topology(const TopologyOptions& options) {
  if (options.job) {
    Group group = Group::from_environment();
    const std::string text = found_in_job(group);
    return group.rank() == 0 ? std::optional(Topology::parse(text)) : std::nullopt;
  }
  if (options.text.empty()) {
    const std::vector<Place> places = places_here();
    const int ranks = options.ranks > 0 ? options.ranks : static_cast<int>(places.size());
    return Topology::parse(found_levels(places, ranks));
  }
  if (!options.text.ends_with(".json")) return Topology::parse(options.text);
  std::ifstream file(options.text);
  if (!file) refuse("cannot open '{}'", options.text);
  return topology_from_json({std::istreambuf_iterator<char>(file), {}});
}

void check(const TopologyOptions& options, const Topology& topology) {
  if (!options.text.empty() && options.ranks > 0 && options.ranks != topology.num_ranks())
    refuse("--ranks is {}, but '{}' has {} ranks", options.ranks, options.text,
           topology.num_ranks());
  check_shape(options.config);
  if (!options.picture.empty() && !options.picture.ends_with(".svg") &&
      !options.picture.ends_with(".dot"))
    refuse("--draw: '{}' ends neither with .svg nor with .dot", options.picture);
}

void draw(const TopologyOptions& options, const Topology& topology) {
  std::vector<std::string> lines = traffic_lines(topology, options.config);
  lines.insert(lines.begin(), topology.to_text());
  std::ofstream file(options.picture);
  file << (options.picture.ends_with(".svg") ? topology_svg(topology, lines)
                                             : topology_dot(topology, lines));
  if (!file.flush()) throw std::runtime_error(fmt::format("cannot write '{}'", options.picture));
}

void run(const TopologyOptions& options) {
  const std::optional<Topology> topology = read_topology(options);
  if (!topology) return;
  check(options, *topology);
  if (!options.picture.empty()) draw(options, *topology);
  const Report report = topology_report(*topology, options.config);
  if (!options.page.empty())
    write_page(options.page, {{"title", "ferry topology"},
                              {"lines", {traffic_lines(*topology, options.config).front()}},
                              {"topology", Report::Json::parse(report.render(true))}});
  std::cout << report.render(options.json) << std::flush;
}

}  // namespace

void add_topology(CLI::App& app, int& exit_code) {
  CLI::App* const verb = app.add_subcommand(
      "topology", "The tree of ranks, and what each algorithm puts on each link");
  verb->footer("Exit code: 0, 1 for a file that cannot be written, 2 for a wrong line.");
  const auto options = std::make_shared<TopologyOptions>();
  auto* const text = verb->add_option(
      "topology", options->text,
      "Levels (host:2@12.5GB/s@5us,rank:4), a preset (gpu8:N, rails8x8, dies16:N, superpod384) or "
      "a file .json; none: what is found here");
  auto* const found =
      verb->add_flag("--found", options->found, "This machine, which is the default")
          ->excludes(text);
  verb->add_flag("--job", options->job,
                 "All hosts of the ranks that a launcher started this for: ferry launch --hosts "
                 "a:4,b:4 -- ferry topology --job")
      ->excludes(text)
      ->excludes(found);
  verb->add_option("--ranks", options->ranks,
                   "Ranks of this machine (default: one for each hardware thread)")
      ->check(CLI::Range(1, Topology::kMostRanks));
  add_shape(*verb, options->config);
  verb->add_option("--draw", options->picture, "Write a picture: FILE.svg or FILE.dot");
  verb->add_option("--report", options->page,
                   "Write one HTML page: the tree with links as wide as their bytes");
  verb->add_flag("--json", options->json, "One JSON object instead of text");
  verb->callback([options, &exit_code] {
    try {
      run(*options);
    } catch (const std::invalid_argument& error) {
      std::cerr << "ferry topology: " << error.what() << '\n';
      exit_code = kUsageError;
    } catch (const Error& error) {
      std::cerr << "ferry topology: " << error.what() << '\n';
      exit_code = kUsageError;
    }
  });
}

}  // namespace ferry::tools
