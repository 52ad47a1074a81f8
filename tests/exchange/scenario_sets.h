// The active ranks of a scenario's rounds, drawn from its seed.
#pragma once

#include <vector>

#include "ferry/exchange.h"
#include "nodes.h"
#include "random.h"

namespace ferry::test {

using ActiveRanks = std::vector<int>;  // of one round; empty: all

// Any ranks that `config` allows to take part, in any order.
ActiveRanks draw_active_ranks(const ExchangeConfig& config, int num_ranks, Random& random);

// One set for each round, in a sequence: disjoint ones in turns, nodes in turns, ever fewer ranks,
// ever more, or any. The first may be all ranks.
std::vector<ActiveRanks> draw_sequence(const ExchangeConfig& config, const Nodes& nodes,
                                       int num_rounds, Random& random);

}  // namespace ferry::test
