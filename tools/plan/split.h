// `ferry plan --split`: compares divisions of the ranks into ranks with tokens and ranks with
// experts (docs/attention_and_experts.md).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/plan/options.h"
#include "tools/shape_options.h"

namespace ferry::tools {

// Times of the two parts of a model, without communication.
struct SplitCosts {
  double attention_us = 0;   // a rank with tokens computes one layer for its tokens
  double expert_row_ns = 0;  // a rank with experts computes one row
};

struct PlannedSplit {
  Split split;
  PlannedPoint point;
  double rows = 0;           // rows of an expert rank, on average
  double experts_us = 0;     // time of an expert rank for its rows
  double layer_us = 0;       // attention, dispatch, experts and combine, one after the other
  double overlapped_us = 0;  // the longest of the four, if each has a micro-batch
  double tokens_per_us = 0;  // tokens of all ranks, divided by the number of ranks
  WindowBytes token_rank = {}, expert_rank = {};
};

// Reads "12:4,8:8", or "all": every division of `num_ranks`. Throws std::invalid_argument.
std::vector<Split> parse_splits(const std::string& text, int num_ranks);

// Plans one division. `point` is the plan of its machine and exchange.
PlannedSplit planned_split(const Split& split, PlannedPoint point, const SplitCosts& costs);

// The division with the most tokens per time and rank (tokens_per_us), the first of equal ones.
std::size_t best_split(const std::vector<PlannedSplit>& splits);

std::string split_text(const std::vector<PlannedSplit>& splits);
nlohmann::ordered_json split_json(const std::vector<PlannedSplit>& splits);

}  // namespace ferry::tools
