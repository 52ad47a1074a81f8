// Defines the options of `ferry bench`, with their texts and ranges; see options.h.
#include "tools/bench/options.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "ferry/status.h"
#include "ferry/topology.h"
#include "kernels/wire_formats.h"
#include "tools/shape_options.h"

namespace ferry::bench {
namespace {

using tools::add_choice;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr int kMostRanks = 1024;

std::int64_t parse_tokens(std::string_view text, std::string_view option) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMostTokens)
    refuse("{}: '{}' is not a number of tokens from 0 to {}", option, text, kMostTokens);
  return value;
}

std::vector<std::int64_t> parse_sweep(std::string_view text) {
  constexpr std::string_view kPrefix = "tokens=";
  if (!text.starts_with(kPrefix) || text.size() == kPrefix.size())
    refuse("--sweep: '{}' is not of the form tokens=1,2,..", text);
  text.remove_prefix(kPrefix.size());
  std::vector<std::int64_t> values;
  while (true) {
    const std::size_t comma = text.find(',');
    values.push_back(parse_tokens(text.substr(0, comma), "--sweep"));
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

void check_tokens_per_rank(const Options& options) {
  if (options.tokens_per_rank.empty()) return;
  if (!options.sweep_text.empty())
    refuse("--tokens-per-rank and --sweep both set the number of tokens: give one of them");
  if (std::ssize(options.tokens_per_rank) != options.ranks)
    refuse("--tokens-per-rank has {} numbers, but --ranks is {}", options.tokens_per_rank.size(),
           options.ranks);
}

void add_between_nodes(CLI::App& app, Options& options) {
  const std::map<std::string, Algorithm> algorithms = {{"auto", Algorithm::kAuto},
                                                       {"fullmesh", Algorithm::kFullmesh},
                                                       {"hierarchical", Algorithm::kHierarchical},
                                                       {"allgather", Algorithm::kAllgather}};
  add_choice(app, "--algorithm", "How rows cross between nodes", algorithms,
             options.shape.algorithm);
  app.add_option("--topology", options.topology,
                 "Levels of the ranks, such as host:2@0.125GB/s,rank:4: where ranks of one host "
                 "play several, and how fast links are (default: FERRY_TOPOLOGY, or as found)");
}

// Sets the roles of --split, and --ranks to their number.
void read_split(Options& options) {
  if (options.split_text.empty()) return;
  const std::optional<tools::Split> split = tools::parse_split(options.split_text);
  const int num_ranks = split ? split->token_ranks + split->expert_ranks : 0;
  if (!split || num_ranks > kMostRanks)
    refuse("--split: '{}' is not of the form 6:2, at most {} ranks in all", options.split_text,
           kMostRanks);
  if (options.cuda || options.shape.shared.num_ranks > 0 || !options.tokens_per_rank.empty())
    refuse("--split: not with --device cuda, --shared-ranks or --tokens-per-rank");
  if (options.mode == Mode::kEnvironment && num_ranks != options.ranks)
    refuse("--split: '{}' has {} ranks, the launcher started {}", options.split_text, num_ranks,
           options.ranks);
  options.split_text = fmt::format("{}:{}", split->token_ranks, split->expert_ranks);
  options.ranks = num_ranks;
  tools::set_roles(*split, options.shape);
}

void check_topology(const Options& options) {
  if (options.topology.empty()) return;
  int ranks = 0;
  try {
    ranks = Topology::parse(options.topology).num_ranks();
  } catch (const Error& error) {
    refuse("--topology: {}", error.what());
  }
  if (ranks == options.ranks) return;
  refuse("--topology {} has {} ranks, but --ranks is {}", options.topology, ranks, options.ranks);
}

// Adds the options for encoded rows, layouts and the other features of an exchange.
void add_features(CLI::App& app, Options& options) {
  const std::map<std::string, CombineWire> combine_wires = {
      {"none", CombineWire::kNone},
      {"int8_8", CombineWire::kInt8Block8},
      {"int8_128", CombineWire::kInt8Block128},
      {"logfmt10", CombineWire::kLogfmt10}};
  add_choice(app, "--combine-wire", "Encoding of rows in combine", combine_wires,
             options.shape.combine_wire);
  app.add_option("--shared-experts", options.shape.shared.num_experts,
                 "Experts that every token goes to")
      ->check(CLI::Range(0, 4))
      ->capture_default_str();
  app.add_option("--shared-ranks", options.shape.shared.num_ranks,
                 "Ranks that hold them and no others: ranks 0, 1, ..")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  app.add_option("--mask-fraction", options.mask_fraction, "Share of top-k entries not sent")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void check_rebalance(Options& options) {
  if (!options.rebalance) return;
  if (options.routing_text.starts_with("ids:"))
    refuse("--rebalance needs a routing with loads: not {}", options.routing_text);
  if (!options.sweep_text.empty() || options.traced())
    refuse("--rebalance measures one shape three times: not with --sweep, --trace or --report");
  if (options.check && (!options.topology.empty() || options.mode == Mode::kEnvironment))
    refuse("--check with --rebalance: on one host only, where results do not depend on the copy");
  const int experts = options.shape.num_experts, ranks = options.expert_ranks();
  int& copies = options.redundant_experts;
  if (copies < 0) copies = (experts + experts / 8 + ranks - 1) / ranks * ranks - experts;
  if ((experts + copies) % ranks == 0) return;
  refuse("--redundant-experts {}: {} experts with them are not as many on each of {} ranks", copies,
         experts + copies, ranks);
}

}  // namespace

std::size_t Options::wire_row_bytes() const noexcept {
  const internal::WireFormat& format = internal::wire_format(shape.wire);
  return format.encode ? format.encoded_bytes(shape.hidden, shape.dtype) : row_bytes();
}

std::size_t Options::wire_scale_bytes() const noexcept {
  const internal::WireFormat& format = internal::wire_format(shape.wire);
  return format.encode ? static_cast<std::size_t>(format.num_scales(shape.hidden)) * 4 : 0;
}

const char* mode_name(Mode mode) noexcept {
  switch (mode) {
    case Mode::kProcesses: return "processes";
    case Mode::kThreads: return "threads";
    case Mode::kEnvironment: break;
  }
  return "environment";
}

const char* node_sums_name(NodeSums sums) noexcept {
  switch (sums) {
    case NodeSums::kRowType: return "row";
    case NodeSums::kFp32: return "fp32";
    case NodeSums::kExact: break;
  }
  return "exact";
}

void add_options(CLI::App& app, Options& options) {
  const std::map<std::string, Mode> modes = {{"processes", Mode::kProcesses},
                                             {"threads", Mode::kThreads},
                                             {"environment", Mode::kEnvironment}};
  // The last value of a repeated option counts, so that a user can override the defaults of a
  // script.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--ranks", options.ranks, "Ranks")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  add_choice(app, "--mode", "What a rank is", modes, options.mode);
  const std::map<std::string, bool> devices = {{"cpu", false}, {"cuda", true}};
  add_choice(app, "--device",
             "Where rows are; cuda: ranks are threads that share one GPU, beside copies on it",
             devices, options.cuda);
  app.add_option("--workers", options.shape.workers, "Threads per rank")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  tools::add_shape(app, options.shape);
  app.add_option("--tokens-per-rank", options.tokens_per_rank, "Tokens of rank 0, 1, .. (a,b,..)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, kMostTokens));
  app.add_option("--split", options.split_text,
                 "A:F, ranks with tokens and ranks with experts behind them; their sum is --ranks");
  add_features(app, options);
  add_between_nodes(app, options);
  app.add_option(
         "--routing", options.routing_text,
         "uniform | zipf:S | real | load:FILE[:LAYER] (without LAYER: the one of median skew) | "
         "ids:FILE[:LAYER], a .npy of [tokens, layers, top_k] | "
         "groups:G")
      ->capture_default_str();
  app.add_option("--top-groups", options.top_groups, "Groups that a token's experts are in")
      ->check(CLI::Range(1, 65536));
  app.add_flag("--rebalance", options.rebalance,
               "Measure three times: experts in blocks, with copies of busy ones where EPLB puts "
               "them, and uniform routing");
  app.add_option("--redundant-experts", options.redundant_experts,
                 "Copies that --rebalance makes (default: an eighth of the experts, rounded up to "
                 "as many on each rank)")
      ->check(CLI::Range(0, 65536))
      ->needs("--rebalance");
  app.add_option("--iterations", options.iterations,
                 "Measured exchanges (default: about half a second)")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--warmup", options.warmup, "Exchanges before them")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of tokens and routing")->capture_default_str();
  app.add_flag("--pin", options.pin, "Pin rank i to core i mod cores");
  app.add_flag("--check", options.check, "Compare every result with the oracle, bit for bit");
  app.add_option("--trace", options.trace, "Write Chrome trace JSON, a track per rank");
  app.add_option("--report", options.report,
                 "Write one HTML page: the table, times with their spread, a timeline, who sends "
                 "how much to whom");
  app.add_flag("--json", options.json, "Print one JSON object as the last line");
  app.add_option("--sweep", options.sweep_text, "A table over tokens=1,2,..");
}

void check_device(const Options& options) {
  if (!options.cuda || (!options.traced() && options.topology.empty() && !options.rebalance))
    return;
  refuse("--device cuda: not with --trace, --report, --topology or --rebalance");
}

void finish_options(Options& options) {
  check_device(options);
  read_split(options);
  check_topology(options);
  options.routing = parse_routing(options.routing_text);
  check_tokens_per_rank(options);
  if (!options.sweep_text.empty()) options.sweep_tokens = parse_sweep(options.sweep_text);
  tools::check_shape(options.shape);
  const int shared = options.shape.shared.num_experts, holders = options.shape.shared.num_ranks;
  if ((shared == 0) != (holders == 0) || (shared > 0 && holders % shared != 0) ||
      holders >= options.ranks)
    refuse(
        "--shared-ranks {} need to be a multiple of --shared-experts {} and less than --ranks {}",
        holders, shared, options.ranks);
  check_rebalance(options);
  if (!options.trace.empty() && options.mode == Mode::kEnvironment)
    refuse("--trace needs one clock for all ranks: not with --mode environment");
  if (!options.trace.empty() && options.sweep_tokens.size() > 1)
    refuse("--trace shows one shape, but --sweep has {}", options.sweep_tokens.size());
}

}  // namespace ferry::bench
