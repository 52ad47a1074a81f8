// The configuration of a scenario, drawn from its seed.
#pragma once

#include <cstdint>
#include <vector>

#include "ferry/exchange.h"
#include "random.h"
#include "scenario.h"

namespace ferry::test {

// `plain`: nothing but rows of one type from ranks to experts.
ExchangeConfig draw_config(const Nodes& nodes, bool plain, const ScenarioLimits& limits,
                           Random& random);

// Ranks with tokens and ranks with experts.
void draw_roles(int num_ranks, ExchangeConfig& config, Random& random);

// Limit of hidden where experts are many: each may get rows, and windows have room for all.
constexpr std::int64_t kMostHiddenOfManyExperts = 16;
// So many that at least some of the ranks sum their counts together.
void make_experts_many(int num_ranks, ExchangeConfig& config, Random& random);

std::int64_t draw_hidden(const ScenarioLimits& limits, Random& random);
DataType draw_float_type(Random& random);
// The numbers [0, count) in any order.
std::vector<int> random_order(int count, Random& random);

// Top-k ids are below this.
std::int64_t num_ids(const ExchangeConfig& config);
// Those of experts, special ones left out.
std::int64_t num_expert_ids(const ExchangeConfig& config);
// Those that lead to the expert-parallel `rank`, always or for some tokens.
std::vector<std::int64_t> ids_of_rank(const ExchangeConfig& config, int num_ranks, int rank);

// Copy and constant experts read the tokens.
bool combine_reads_tokens(const ExchangeConfig& config);

}  // namespace ferry::test
