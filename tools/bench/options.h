// The options of `ferry bench`: names, ranges, and which exclude each other.
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

// kEnvironment: this process is one rank of a job that a launcher started.
enum class Mode : std::uint8_t { kProcesses, kThreads, kEnvironment };
const char* mode_name(Mode mode) noexcept;
const char* node_sums_name(NodeSums sums) noexcept;

struct Options {
  int ranks = 8;      // kEnvironment: as the launcher says
  int rank = 0;       // kEnvironment: of this process
  bool cuda = false;  // rows are in the memory of one GPU, which all ranks share
  Mode mode = Mode::kProcesses;
  // Each rank has `shape.max_tokens` tokens, unless tokens_per_rank has a number for it.
  ExchangeConfig shape = {.max_tokens = 128, .hidden = 7168, .num_experts = 256, .top_k = 8};
  std::vector<std::int64_t> tokens_per_rank;
  std::string topology;      // empty: FERRY_TOPOLOGY, or as found
  double mask_fraction = 0;  // of the top-k entries, not sent
  std::string routing_text = "uniform";
  int top_groups = 0;  // of routing groups:G
  RoutingSpec routing;
  bool rebalance = false;
  int redundant_experts = -1;  // copies of busy ones; -1: an eighth of the experts
  int iterations = 0;          // 0: as many as fill about half a second, 20 to 2000
  int warmup = 36;             // both kinds of stores are tried in the first 16, maybe again in 16
  std::uint64_t seed = 1;
  bool pin = false;
  bool check = false;
  std::string trace;   // file name, empty for none
  std::string report;  // likewise: an HTML page
  bool json = false;
  std::string sweep_text;
  std::vector<std::int64_t> sweep_tokens;  // empty: one point

  // Also for a report of one shape, on ranks of one clock.
  bool traced() const noexcept {
    return !trace.empty() ||
           (!report.empty() && sweep_tokens.size() <= 1 && mode != Mode::kEnvironment);
  }
  std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(shape.hidden) * element_bytes(shape.dtype);
  }
  // Bytes of a received row, and of its scales.
  std::size_t wire_row_bytes() const noexcept;
  std::size_t wire_scale_bytes() const noexcept;
  // Rows of a token at most.
  int entries() const noexcept { return shape.top_k + shape.shared.num_experts; }
  // Ranks that hold routed experts.
  int expert_ranks() const noexcept { return ranks - shape.shared.num_ranks; }
  GroupOptions group_options() const { return {.topology = topology}; }
};

// Adds the options to `app`, which fills `options` when it parses.
void add_options(CLI::App& app, Options& options);

// Fills the fields that are written as text and checks what one option alone cannot. Throws
// std::invalid_argument naming the options, the values and the limit.
void finish_options(Options& options);

}  // namespace ferry::bench
