// Scenario: a random configuration, the inputs of every rank for some rounds, and the results of
// the oracle. All of it follows from one seed, and is made before the ranks start. player.h plays
// it on a group.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nodes.h"
#include "oracle/reference.h"
#include "random.h"

namespace ferry::test {

// Limits of what is drawn. The defaults are those of the conformance suite.
struct ScenarioLimits {
  int max_rounds = 4;
  std::int64_t max_tokens = 40;
  std::int64_t max_hidden = 300;
  bool wide_rows = true;     // now and then a few rows of thousands of elements
  bool many_experts = true;  // now and then thousands of experts
  bool roles = true;         // half of the scenarios have token_ranks or expert_ranks
  // The active ranks of the rounds are a sequence (scenario_sets.h), mostly without combines.
  bool sequence = false;
  std::function<void(ExchangeConfig&)> adjust = {};  // changes the config before inputs are drawn
};

struct CombineCase {
  std::int64_t hidden = 0;
  DataType row_type = DataType::kBf16;
  std::vector<internal::RankOutput> outputs;     // [R]
  std::vector<internal::RankCombined> expected;  // [R]
  bool weights_home = false;  // row_weights are given, out_topk_weights come back
  bool from_tensors = false;  // no handle: what dispatch was given says where the rows are
};

const char* name_of(Algorithm algorithm);
const char* name_of(NodeSums sums);

// One dispatch and its combines.
struct Round {
  int cached_from = -1;                          // the round whose routing is used again
  bool weights = true;                           // topk_weights travel with the rows
  std::vector<internal::RankInput> inputs;       // [R]
  std::vector<internal::RankReceived> expected;  // [R]
  std::vector<CombineCase> combines;

  // Whether the rank is one of the active ones.
  bool takes_part(int rank) const;
};

struct Scenario {
  std::uint64_t seed = 0;
  int num_ranks = 0;
  Nodes nodes;
  bool plain = false;  // drawn without wires, shared or special experts, active ranks and the like
  ExchangeConfig config;
  std::vector<Round> rounds;
  // A rank makes no call after those of the last round in which it takes part.
  bool silent = false;

  std::string describe() const;
  // Names of the features that this scenario has, for the test that the suite covers them all.
  std::map<std::string, int> features() const;
};

Scenario make_scenario(const Nodes& nodes, std::uint64_t seed, const ScenarioLimits& limits = {});
// On the nodes of the test (test_nodes), as is each overload that takes num_ranks.
Scenario make_scenario(int num_ranks, std::uint64_t seed, const ScenarioLimits& limits = {});

// Rounds of max_tokens tokens on every rank, routed evenly at random, one combine each (fp32 rows
// if the tokens are bytes).
Scenario plain_scenario(const Nodes& nodes, const ExchangeConfig& config, int num_rounds,
                        std::uint64_t seed);
Scenario plain_scenario(int num_ranks, const ExchangeConfig& config, int num_rounds,
                        std::uint64_t seed);
// Changes the scenario: in `round` every token goes to the experts [0, top_k).
void route_all_to_first_experts(Scenario& scenario, int round);

// ---- pieces of a scenario, for tests that need one certain thing
// Random tokens for `config`, num_tokens tokens, routed to distinct random experts, with weights in
// [-2, 2), and whatever else the configuration asks for: factors, scales, the replica table.
internal::RankInput random_input(const ExchangeConfig& config, std::int64_t num_tokens,
                                 Random& random);
// Fills in `expected` of a round.
void expect_dispatch(const ExchangeConfig& config, Round& round);
// A combine with random expert rows for what the round received.
CombineCase random_combine(const ExchangeConfig& config, const Round& round, std::int64_t hidden,
                           DataType row_type, Random& random);
// Fills in `expected` of a combine.
void expect_combine(const ExchangeConfig& config, const Round& round, CombineCase& combine);
// [elements] of `type`, finite.
std::vector<std::byte> random_elements(std::int64_t elements, DataType type, Random& random);

}  // namespace ferry::test
