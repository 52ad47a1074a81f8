// `ferry topology`: its options, and where the topology comes from. Called by main.cc; calls
// topology_found, topology_json, topology_report and topology_draw.
#include "topology.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

#include "ferry/config.h"
#include "ferry/status.h"
#include "topology_draw.h"
#include "topology_found.h"
#include "topology_json.h"
#include "topology_report.h"

namespace ferry::tools {

namespace {

constexpr int kUsageError = 2;

struct Options {
  std::string text;  // empty: what is found here
  bool found = false;
  bool job = false;  // what is found on all its hosts
  int ranks = 0;     // 0: one for each hardware thread
  ExchangeConfig config = {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8};
  std::string picture;  // file name, empty for none
  bool json = false;
};

// An option with one of a few names; what `value` holds is the default.
template <typename T>
void add_choice(CLI::App& app, const std::string& option, const std::string& text,
                const std::map<std::string, T>& names, T& value) {
  app.add_option(option, value, text)->transform(CLI::CheckedTransformer(names));
}

void add_shape(CLI::App& app, ExchangeConfig& config) {
  app.add_option("--tokens", config.max_tokens, "Tokens of each rank")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--hidden", config.hidden, "Elements of a token")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--top-k", config.top_k, "Experts of a token")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  app.add_option("--experts", config.num_experts, "Experts of all ranks")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  add_choice<DataType>(
      app, "--dtype", "Type of an element, bf16 by default",
      {{"bf16", DataType::kBf16}, {"fp16", DataType::kFp16}, {"fp32", DataType::kFp32}},
      config.dtype);
  add_choice<Layout>(app, "--layout", "How received rows lie, expert_major by default",
                     {{"rank_major", Layout::kRankMajor},
                      {"expert_major", Layout::kExpertMajor},
                      {"padded", Layout::kPadded}},
                     config.layout);
  add_choice<Wire>(app, "--wire", "How rows travel with dispatch, as they are by default",
                   {{"none", Wire::kNone},
                    {"int8", Wire::kInt8},
                    {"fp8", Wire::kFp8},
                    {"fp8_pow2", Wire::kFp8Pow2},
                    {"fp8_ue8m0", Wire::kFp8Ue8m0}},
                   config.wire);
  add_choice<NodeSums>(
      app, "--node-sums", "What comes home from a node, row_type by default",
      {{"row_type", NodeSums::kRowType}, {"fp32", NodeSums::kFp32}, {"exact", NodeSums::kExact}},
      config.node_sums);
}

// Nothing on ranks of a job that leave it to the first to tell.
std::optional<Topology> read_topology(const Options& options) {
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
  if (!file) throw std::invalid_argument(fmt::format("cannot open '{}'", options.text));
  return topology_from_json({std::istreambuf_iterator<char>(file), {}});
}

void check(const Options& options, const Topology& topology) {
  if (!options.text.empty() && options.ranks > 0 && options.ranks != topology.num_ranks()) {
    throw std::invalid_argument(fmt::format("--ranks is {}, but '{}' has {} ranks", options.ranks,
                                            options.text, topology.num_ranks()));
  }
  if (options.config.top_k > options.config.num_experts) {
    throw std::invalid_argument(
        fmt::format("--top-k {} needs that many distinct experts, but --experts is {}",
                    options.config.top_k, options.config.num_experts));
  }
  if (!options.picture.empty() && !options.picture.ends_with(".svg") &&
      !options.picture.ends_with(".dot")) {
    throw std::invalid_argument(
        fmt::format("--draw: '{}' ends neither with .svg nor with .dot", options.picture));
  }
}

void draw(const Options& options, const Topology& topology) {
  std::vector<std::string> lines = traffic_lines(topology, options.config);
  lines.insert(lines.begin(), topology.to_text());
  std::ofstream file(options.picture);
  file << (options.picture.ends_with(".svg") ? topology_svg(topology, lines)
                                             : topology_dot(topology, lines));
  if (!file.flush()) throw std::runtime_error(fmt::format("cannot write '{}'", options.picture));
}

void run(const Options& options) {
  const std::optional<Topology> topology = read_topology(options);
  if (!topology) return;
  check(options, *topology);
  if (!options.picture.empty()) draw(options, *topology);
  std::cout << (options.json ? topology_json(*topology, options.config)
                             : topology_text(*topology, options.config))
            << std::flush;
}

}  // namespace

void add_topology(CLI::App& app, int& exit_code) {
  CLI::App* const verb = app.add_subcommand(
      "topology", "The tree of ranks, and what each algorithm puts on each link");
  verb->footer("Exit code: 0, 1 for a file that cannot be written, 2 for a wrong line.");
  const auto options = std::make_shared<Options>();
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
