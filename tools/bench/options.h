// The options of `ferry bench`: their names and ranges, and which options exclude each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ferry/config.h"
#include "ferry/group.h"
#include "ferry/types.h"
#include "tools/bench/routing.h"
#include "tools/cli.h"

namespace ferry::bench {

// With kEnvironment this process is one rank of a job that a launcher started.
enum class Mode : std::uint8_t { kProcesses, kThreads, kEnvironment };
const char* mode_name(Mode mode) noexcept;
const char* node_sums_name(NodeSums sums) noexcept;

struct Options {
  int ranks = 8;      // kEnvironment: the number that the launcher gives
  int rank = 0;       // kEnvironment: the rank of this process
  bool cuda = false;  // rows are in the memory of one GPU, which all ranks share
  Mode mode = Mode::kProcesses;
  // Each rank has `shape.max_tokens` tokens, unless tokens_per_rank lists another number for it.
  ExchangeConfig shape = {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8};
  std::vector<std::int64_t> tokens_per_rank;
  std::string split_text;    // "6:2": ranks with tokens, and with experts; empty: all have both
  std::string topology;      // empty: FERRY_TOPOLOGY, or the topology that is found
  double mask_fraction = 0;  // the fraction of top-k entries that are not sent
  std::string routing_text = "uniform";
  int top_groups = 0;  // used by the routing groups:G
  RoutingSpec routing;
  bool rebalance = false;
  int redundant_experts = -1;  // extra replicas of busy experts; -1: an eighth of the experts
  int iterations = 0;          // 0: as many as fill about half a second, from 20 to 2000
  int warmup = 36;  // enough for the exchange to try both kinds of stores, up to twice 16 times
  std::uint64_t seed = 1;
  bool pin = false;
  bool check = false;
  std::string trace;   // a file name; empty: no trace
  std::string report;  // the file name of an HTML page; empty: none
  bool json = false;
  std::string sweep_text;
  std::vector<std::int64_t> sweep_tokens;  // empty: measure one point

  // Whether to trace. A report of a single shape needs a trace, too, unless the ranks may be on
  // hosts with different clocks.
  bool traced() const noexcept {
    return !trace.empty() ||
           (!report.empty() && sweep_tokens.size() <= 1 && mode != Mode::kEnvironment);
  }
  std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(shape.hidden) * element_bytes(shape.dtype);
  }
  // The number of bytes of a received row, and of its scales.
  std::size_t wire_row_bytes() const noexcept;
  std::size_t wire_scale_bytes() const noexcept;
  // The largest number of rows that a token can have.
  int entries() const noexcept { return shape.top_k + shape.shared.num_experts; }
  // The number of ranks that hold routed experts.
  int expert_ranks() const noexcept {
    return shape.expert_ranks.empty() ? ranks - shape.shared.num_ranks
                                      : static_cast<int>(shape.expert_ranks.size());
  }
  GroupOptions group_options() const { return {.topology = topology}; }
};

// Adds the options to `app`, which fills `options` when it parses.
void add_options(CLI::App& app, Options& options);

// Fills the fields that are given as text, and checks options against each other. Throws
// std::invalid_argument with the options, the values and the limit.
void finish_options(Options& options);

}  // namespace ferry::bench
