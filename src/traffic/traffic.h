// Traffic: the numbers of an exchange that decide how many bytes it moves, and between which ranks.
// Only the payload counts: rows and their scales.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ferry/config.h"

namespace ferry::internal {

struct Traffic {
  std::int64_t tokens = 0;  // tokens of each rank
  int top_k = 0;
  std::vector<int> rank_experts;   // [ranks]: the number of experts of each
  std::vector<bool> sources = {};  // [ranks]: dispatches tokens; empty: all
  double row_bytes = 0;            // a row of dispatch
  double output_bytes = 0;         // a row of combine
  double sum_bytes = 0;            // a sum of rows of a node, in combine
  double result_bytes = 0;         // the result of a token, as combine writes it
  bool row_per_rank = false;       // false: a row per expert (ferry::Layout)
  bool exact = false;              // combine returns rows instead of sums (NodeSums::kExact)

  double num_sources() const;
};

// Counts routed experts only, without shared experts, replicas and masks. Outputs have the type of
// the tokens.
Traffic traffic_of(const ExchangeConfig& config, int num_ranks);

// The probability that at least one of `top_k` distinct experts, chosen uniformly from
// `num_experts`, is in a given set of `experts` experts.
double touch_probability(int experts, int num_experts, int top_k);
double touch_probability(const Traffic& traffic, int experts);

// Which ranks the tokens of a rank go to, on average.
struct Demand {
  // The share of the tokens that chose an expert on at least one of `ranks`, which ascend.
  std::function<double(std::span<const int> ranks)> touched;
  // (token, expert) pairs on a rank, per token.
  std::function<double(int rank)> rows;

  // Rows in the window of a rank, per token: one for each expert, or one for each token.
  double window_rows(int rank, bool row_per_rank) const {
    return row_per_rank ? touched(std::span(&rank, 1)) : rows(rank);
  }
};
// Every choice of experts is equally likely. `traffic` must outlive the result.
Demand uniform_demand(const Traffic& traffic);

}  // namespace ferry::internal
