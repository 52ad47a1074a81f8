// Draws scenarios: the tokens and ids of every rank, for some rounds. Every choice is made here and
// in scenario_config.cc and scenario_combine.cc, in a fixed order, from one seed.
#include "scenario.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <sstream>

#include "kernels/kernels.h"
#include "scenario_combine.h"
#include "scenario_config.h"
#include "scenario_sets.h"

namespace ferry::test {
namespace {

using internal::RankInput;
using internal::RankReceived;

enum class Routing { kUniform, kDuplicates, kOneExpert, kOneRank, kSkewed, kSparse, kNothing };
constexpr std::array kRoutings = {Routing::kUniform,   Routing::kUniform, Routing::kDuplicates,
                                  Routing::kOneExpert, Routing::kOneRank, Routing::kSkewed,
                                  Routing::kSparse,    Routing::kNothing};

std::vector<std::int64_t> every_id(const ExchangeConfig& config) {
  std::vector<std::int64_t> every(num_ids(config));
  std::iota(every.begin(), every.end(), 0);
  return every;
}

// One token's ids: distinct ones of `candidates`, then -1.
std::vector<std::int64_t> distinct_ids(int top_k, std::vector<std::int64_t> candidates,
                                       Random& random) {
  std::vector<std::int64_t> ids(top_k, -1);
  for (std::int64_t& id : ids) {
    if (candidates.empty()) break;
    const auto at = candidates.begin() + random.below(static_cast<std::int64_t>(candidates.size()));
    id = *at;
    candidates.erase(at);
  }
  return ids;
}

std::int64_t skewed_id(std::int64_t num_ids, Random& random) {
  const std::int64_t a = random.below(num_ids);
  return a * random.below(num_ids) / num_ids;
}

std::vector<std::int64_t> token_ids(const ExchangeConfig& config, Routing routing,
                                    const std::vector<std::int64_t>& favoured, Random& random) {
  std::vector<std::int64_t> ids(config.top_k, -1);
  if (routing == Routing::kUniform) return distinct_ids(config.top_k, every_id(config), random);
  if (routing == Routing::kOneRank) return distinct_ids(config.top_k, favoured, random);
  if (routing == Routing::kOneExpert)
    ids[random.below(config.top_k)] = favoured.empty() ? 0 : favoured[0];
  for (std::int64_t& id : ids) {
    if (routing == Routing::kDuplicates) id = random.below(num_ids(config));
    if (routing == Routing::kSkewed) id = skewed_id(num_ids(config), random);
    if (routing == Routing::kSparse && random.one_in(6)) id = random.below(num_ids(config));
  }
  return ids;
}

bool has_tokens(const ExchangeConfig& config, int rank) {
  const std::vector<int>& ranks = config.token_ranks;
  return ranks.empty() || std::ranges::count(ranks, rank / config.tp_size) > 0;
}

void add_masks(const ExchangeConfig& config, RankInput& input, Random& random) {
  if (random.one_in(4)) {
    input.token_mask.resize(input.num_tokens);
    for (std::uint8_t& kept : input.token_mask) kept = random.one_in(3) ? 0 : 1;
  }
  if (random.one_in(4)) {
    input.topk_mask.resize(input.num_tokens * config.top_k);
    for (std::uint8_t& kept : input.topk_mask)
      kept = random.one_in(3) ? 0 : static_cast<std::uint8_t>(random.between(1, 255));
  }
}

// Values that wires treat in a way of their own: zeros, subnormals, large ones, NaN, infinity.
void make_some_peculiar(const ExchangeConfig& config, RankInput& input, Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const std::size_t bytes = element_bytes(config.dtype);
  for (std::int64_t token = 0; token < input.num_tokens; ++token) {
    if (!random.one_in(10)) continue;
    std::byte* const row = &input.tokens[token * hidden * bytes];
    constexpr std::array kFactors = {0.0F, 0x1p-20F, 0x1p-130F, 0x1p14F};
    const float factor = random.pick(kFactors);
    for (std::size_t h = 0; h < hidden; ++h) {
      const float value = internal::to_float(row + h * bytes, config.dtype);
      internal::from_float(value * factor, row + h * bytes, config.dtype);
    }
    if (!random.one_in(2)) continue;
    constexpr std::array kOdd = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()};
    const float odd = random.pick(kOdd);
    internal::from_float(odd, row + random.below(config.hidden) * bytes, config.dtype);
  }
}

void draw_tokens(const ExchangeConfig& config, bool plain, RankInput& input, Random& random) {
  const int node = input.node;
  std::vector<int> outer = std::move(input.outer);
  input = random_input(config, input.num_tokens, random);
  input.node = node;
  input.outer = std::move(outer);
  if (!plain && config.dtype != DataType::kBytes && !combine_reads_tokens(config))
    make_some_peculiar(config, input, random);
}

std::vector<RankInput> draw_inputs(const Scenario& scenario, const ActiveRanks* active,
                                   Random& random) {
  const ExchangeConfig& config = scenario.config;
  const int num_ranks = scenario.num_ranks;
  const int members = num_ranks / config.tp_size;
  const Routing routing = random.pick(kRoutings);
  const std::vector<std::int64_t> favoured =
      ids_of_rank(config, members, static_cast<int>(random.below(members)));
  const bool only_one_rank = random.one_in(8);
  const std::int64_t busy_rank = random.below(num_ranks);
  ActiveRanks active_ranks;
  if (active) {
    active_ranks = *active;
  } else if (!scenario.plain && config.tp_size == 1 && random.one_in(3)) {
    active_ranks = draw_active_ranks(config, num_ranks, random);
  }
  std::vector<RankInput> inputs;
  for (int rank = 0; rank < num_ranks; ++rank) {
    RankInput input;
    scenario.nodes.place(rank, input);
    input.num_tokens = random.one_in(2) ? config.max_tokens : random.between(0, config.max_tokens);
    if (random.one_in(6) || (only_one_rank && rank != busy_rank)) input.num_tokens = 0;
    if (!has_tokens(config, rank)) input.num_tokens = 0;
    draw_tokens(config, scenario.plain, input, random);
    for (std::int64_t token = 0; token < input.num_tokens; ++token) {
      const std::vector<std::int64_t> ids = token_ids(config, routing, favoured, random);
      std::copy(ids.begin(), ids.end(), input.topk_ids.begin() + token * config.top_k);
    }
    add_masks(config, input, random);
    input.active_ranks = active_ranks;
    inputs.push_back(std::move(input));
  }
  return inputs;
}

// Same routing; other tokens and weights, and other factors and scales.
std::vector<RankInput> other_tokens(const Scenario& scenario, const std::vector<RankInput>& inputs,
                                    Random& random) {
  std::vector<RankInput> others = inputs;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    RankInput& other = others[rank];
    draw_tokens(scenario.config, scenario.plain, other, random);
    other.topk_ids = inputs[rank].topk_ids;
    other.token_mask = inputs[rank].token_mask;
    other.topk_mask = inputs[rank].topk_mask;
    other.replica_table = inputs[rank].replica_table;
    other.active_ranks = inputs[rank].active_ranks;
  }
  return others;
}

// Capacities that these rounds just fit into: an expert may get several rows of a token with
// duplicates.
void draw_capacities(Scenario& scenario, Random& random) {
  ExchangeConfig& config = scenario.config;
  std::int64_t most_rows = 1, most_of_expert = 1;
  for (const Round& round : scenario.rounds) {
    for (const RankReceived& received : round.expected) {
      most_rows = std::max(most_rows, received.num_rows);
      for (const std::int64_t rows : received.tokens_per_expert)
        most_of_expert = std::max(most_of_expert, rows);
    }
  }
  std::int64_t by_default = 0;
  for (int rank = 0; rank < scenario.num_ranks; ++rank)
    by_default += has_tokens(config, rank) ? config.max_tokens : 0;
  if (config.layout == Layout::kPadded && (most_of_expert > by_default || random.one_in(2))) {
    config.expert_capacity = most_of_expert + random.below(3);
    for (Round& round : scenario.rounds) expect_dispatch(config, round);
  }
  if (config.layout != Layout::kPadded && random.one_in(4))
    config.row_capacity = most_rows + random.below(2);
}

void draw_factors(const ExchangeConfig& config, RankInput& input, Random& random) {
  if (config.wire != Wire::kInt8Static && (config.wire != Wire::kInt8 || random.one_in(3))) return;
  const bool by_expert = config.layout != Layout::kRankMajor && random.one_in(2);
  input.factor_rows = static_cast<int>(
      by_expert ? config.shared.num_experts + num_expert_ids(config) : std::int64_t{1});
  input.factor_channels = random.one_in(2) ? 1 : config.hidden;
  const float largest = config.wire == Wire::kInt8Static ? 50.0F : 1.0F;  // some saturate
  for (std::int64_t i = 0; i < input.factor_rows * input.factor_channels; ++i)
    input.factors.push_back(random.value() * largest);
}

void draw_replica_table(const Replicas& replicas, RankInput& input, Random& random) {
  if (replicas.choice != ReplicaChoice::kByTable) return;
  for (const std::vector<int>& instances : replicas.instances) {
    input.replica_table.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::int64_t>(instances.size()))));
  }
}

}  // namespace

bool Round::takes_part(int rank) const {
  const std::vector<int>& ranks = inputs[rank].active_ranks;
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<std::byte> random_elements(std::int64_t elements, DataType type, Random& random) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements) * element_bytes(type));
  for (std::int64_t i = 0; i < elements; ++i) {
    if (type == DataType::kBytes) {
      bytes[i] = static_cast<std::byte>(random.below(256));
    } else {
      internal::from_float(random.value(),
                           &bytes[static_cast<std::size_t>(i) * element_bytes(type)], type);
    }
  }
  return bytes;
}

RankInput random_input(const ExchangeConfig& config, std::int64_t num_tokens, Random& random) {
  RankInput input;
  input.num_tokens = num_tokens;
  input.tokens = random_elements(num_tokens * config.hidden, config.dtype, random);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::vector<std::int64_t> ids = distinct_ids(config.top_k, every_id(config), random);
    input.topk_ids.insert(input.topk_ids.end(), ids.begin(), ids.end());
  }
  for (std::int64_t i = 0; i < num_tokens * config.top_k; ++i)
    input.topk_weights.push_back(random.value());
  draw_factors(config, input, random);
  input.token_scales = random_elements(num_tokens * config.scale_bytes, DataType::kBytes, random);
  draw_replica_table(config.replicas, input, random);
  return input;
}

void expect_dispatch(const ExchangeConfig& config, Round& round) {
  std::vector<RankInput> sent = round.inputs;
  for (RankInput& input : sent) {
    if (!round.weights) input.topk_weights.clear();
  }
  round.expected = internal::reference_dispatch(config, sent);
}

Scenario make_scenario(int num_ranks, std::uint64_t seed, const ScenarioLimits& limits) {
  return make_scenario(test_nodes(num_ranks), seed, limits);
}

Scenario make_scenario(const Nodes& nodes, std::uint64_t seed, const ScenarioLimits& limits) {
  std::uint64_t stream = nodes.of_rank.size();  // shapes of as many ranks draw other things
  for (const char c : nodes.topology) stream = stream * 31 + static_cast<unsigned char>(c);
  Random random(seed, stream);
  Scenario scenario;
  scenario.seed = seed;
  scenario.num_ranks = static_cast<int>(nodes.of_rank.size());
  scenario.nodes = nodes;
  scenario.plain = random.one_in(3);
  scenario.config = draw_config(nodes, scenario.plain, limits, random);
  if (limits.adjust) limits.adjust(scenario.config);
  Random roles(seed, stream + 2);
  if (limits.roles && roles.one_in(2)) draw_roles(scenario.num_ranks, scenario.config, roles);
  Random rare(seed, stream + 1);  // a stream of its own: the other scenarios stay what they were
  ScenarioLimits of_combines = limits;
  if (limits.many_experts && rare.one_in(10)) {
    make_experts_many(scenario.num_ranks, scenario.config, rare);
    of_combines.max_hidden = std::min(limits.max_hidden, kMostHiddenOfManyExperts);
  }
  const auto num_rounds = static_cast<int>(random.between(1, limits.max_rounds));
  std::vector<ActiveRanks> sets;
  if (limits.sequence && scenario.config.tp_size == 1)
    sets = draw_sequence(scenario.config, nodes, num_rounds, random);
  scenario.silent = !sets.empty() && random.one_in(3);
  for (int i = 0; i < num_rounds; ++i) {
    Round round;
    if (i > 0 && sets.empty() && random.one_in(3)) {
      round.cached_from = static_cast<int>(random.below(i));
      round.inputs = other_tokens(scenario, scenario.rounds[round.cached_from].inputs, random);
    } else {
      round.inputs = draw_inputs(scenario, sets.empty() ? nullptr : &sets[i], random);
    }
    round.weights = !random.one_in(4);
    expect_dispatch(scenario.config, round);
    scenario.rounds.push_back(std::move(round));
  }
  draw_capacities(scenario, random);
  for (Round& round : scenario.rounds) {
    const bool none = !sets.empty() && !random.one_in(3);
    const std::int64_t num_combines = none ? 0 : random.one_in(4) ? random.between(0, 3) : 1;
    for (int i = 0; i < num_combines; ++i)
      round.combines.push_back(draw_combine(scenario, round, of_combines, random));
    for (const CombineCase& combine : round.combines) {
      scenario.config.max_output_row_bytes =
          std::max(scenario.config.max_output_row_bytes,
                   combine.hidden * static_cast<std::int64_t>(element_bytes(combine.row_type)));
    }
  }
  return scenario;
}

static void add_plain_combine(const Scenario& scenario, Round& round, Random& random) {
  const ExchangeConfig& config = scenario.config;
  const DataType row_type = config.dtype == DataType::kBytes ? DataType::kFp32 : config.dtype;
  expect_dispatch(config, round);
  round.combines = {random_combine(config, round, config.hidden, row_type, random)};
}

Scenario plain_scenario(const Nodes& nodes, const ExchangeConfig& config, int num_rounds,
                        std::uint64_t seed) {
  Random random(seed);
  const int num_ranks = static_cast<int>(nodes.of_rank.size());
  Scenario scenario{seed, num_ranks, nodes, true, config, {}};
  if (scenario.nodes.several() && config.algorithm == Algorithm::kAuto)
    scenario.config.algorithm = Algorithm::kHierarchical;
  for (int i = 0; i < num_rounds; ++i) {
    Round round;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::int64_t num_tokens = has_tokens(config, rank) ? config.max_tokens : 0;
      round.inputs.push_back(random_input(config, num_tokens, random));
      scenario.nodes.place(rank, round.inputs.back());
    }
    add_plain_combine(scenario, round, random);
    scenario.rounds.push_back(std::move(round));
  }
  return scenario;
}

Scenario plain_scenario(int num_ranks, const ExchangeConfig& config, int num_rounds,
                        std::uint64_t seed) {
  return plain_scenario(test_nodes(num_ranks), config, num_rounds, seed);
}

void route_all_to_first_experts(Scenario& scenario, int round) {
  Random random(scenario.seed, 5);
  for (RankInput& input : scenario.rounds[round].inputs) {
    for (std::size_t i = 0; i < input.topk_ids.size(); ++i) {
      input.topk_ids[i] = static_cast<std::int64_t>(i) % scenario.config.top_k;
    }
  }
  add_plain_combine(scenario, scenario.rounds[round], random);
}

}  // namespace ferry::test
