// Traffic: the numbers of an exchange that decide how many bytes it moves, and which tokens go
// where. Only the payload counts: rows and their scales.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ferry/config.h"

namespace ferry::internal {

struct Traffic {
  std::int64_t tokens = 0;  // of each rank
  int top_k = 0;
  std::vector<int> rank_experts;  // [ranks]: experts that each owns
  double row_bytes = 0;           // of dispatch
  double output_bytes = 0;        // a row of combine
  double sum_bytes = 0;           // a node's sum of rows, on its way back
  double result_bytes = 0;        // of a token, as combine writes it
  bool row_per_rank = false;      // else a row per expert (ferry::Layout)
  bool exact = false;             // rows instead of sums return (NodeSums::kExact)
};

// Counts routed experts only: shared ones, replicas and masks are left out. Outputs have the type
// of the tokens.
Traffic traffic_of(const ExchangeConfig& config, int num_ranks);

// The probability that at least one of `top_k` distinct experts, chosen uniformly from
// `num_experts`, is one of some `experts`.
double touch_probability(int experts, int num_experts, int top_k);
double touch_probability(const Traffic& traffic, int experts);

// Which of a rank's tokens want experts of other ranks, on average.
struct Demand {
  // The share of the tokens that want an expert on at least one of these ranks, which ascend.
  std::function<double(std::span<const int> ranks)> touched;
  // Pairs (token, expert) on a rank, per token.
  std::function<double(int rank)> rows;

  // Rows in the window of a rank, per token: one for each expert, or for each token that comes.
  double window_rows(int rank, bool row_per_rank) const {
    return row_per_rank ? touched(std::span(&rank, 1)) : rows(rank);
  }
};
// Every choice of experts is equally likely. `traffic` must outlive the result.
Demand uniform_demand(const Traffic& traffic);

}  // namespace ferry::internal
