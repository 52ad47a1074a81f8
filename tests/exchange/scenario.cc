// Drawing scenarios. Every choice is made here, in a fixed order, from one seed.
#include "scenario.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <sstream>

#include "kernels/kernels.h"

namespace ferry::test {
namespace {

using internal::RankInput;
using internal::RankOutput;
using internal::RankReceived;

enum class Routing { kUniform, kDuplicates, kOneExpert, kOneRank, kSkewed, kSparse, kNothing };
constexpr std::array kRoutings = {Routing::kUniform,   Routing::kUniform, Routing::kDuplicates,
                                  Routing::kOneExpert, Routing::kOneRank, Routing::kSkewed,
                                  Routing::kSparse,    Routing::kNothing};
constexpr std::array kFloatTypes = {DataType::kBf16, DataType::kFp16, DataType::kFp32};

std::vector<std::int64_t> experts_of_rank(const ExchangeConfig& config, int num_ranks, int rank) {
  std::vector<std::int64_t> experts;
  for (std::int64_t expert = 0; expert < config.num_experts; ++expert) {
    const std::int64_t block = config.num_experts / num_ranks,
                       larger = config.num_experts % num_ranks;
    const std::int64_t first = rank * block + std::min<std::int64_t>(rank, larger);
    const bool in_block = expert >= first && expert < first + block + (rank < larger ? 1 : 0);
    if (config.expert_rank.empty() ? in_block : config.expert_rank[expert] == rank)
      experts.push_back(expert);
  }
  return experts;
}

// One token's ids: distinct experts of `candidates`, then -1.
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

std::int64_t skewed_id(int num_experts, Random& random) {
  const std::int64_t a = random.below(num_experts);
  return a * random.below(num_experts) / num_experts;
}

std::vector<std::int64_t> token_ids(const ExchangeConfig& config, Routing routing,
                                    const std::vector<std::int64_t>& favoured, Random& random) {
  std::vector<std::int64_t> every(config.num_experts);
  std::iota(every.begin(), every.end(), 0);
  std::vector<std::int64_t> ids(config.top_k, -1);
  if (routing == Routing::kUniform) return distinct_ids(config.top_k, every, random);
  if (routing == Routing::kOneRank) return distinct_ids(config.top_k, favoured, random);
  if (routing == Routing::kOneExpert)
    ids[random.below(config.top_k)] = favoured.empty() ? 0 : favoured[0];
  for (std::int64_t& id : ids) {
    if (routing == Routing::kDuplicates) id = random.below(config.num_experts);
    if (routing == Routing::kSkewed) id = skewed_id(config.num_experts, random);
    if (routing == Routing::kSparse && random.one_in(6)) id = random.below(config.num_experts);
  }
  return ids;
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

std::vector<RankInput> draw_inputs(const ExchangeConfig& config, int num_ranks, Random& random) {
  const Routing routing = random.pick(kRoutings);
  const std::vector<std::int64_t> favoured =
      experts_of_rank(config, num_ranks, static_cast<int>(random.below(num_ranks)));
  const bool only_one_rank = random.one_in(8);
  const std::int64_t busy_rank = random.below(num_ranks);
  std::vector<RankInput> inputs;
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::int64_t num_tokens =
        random.one_in(2) ? config.max_tokens : random.between(0, config.max_tokens);
    if (random.one_in(6) || (only_one_rank && rank != busy_rank)) num_tokens = 0;
    RankInput input = random_input(config, num_tokens, random);
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      const std::vector<std::int64_t> ids = token_ids(config, routing, favoured, random);
      std::copy(ids.begin(), ids.end(), input.topk_ids.begin() + token * config.top_k);
    }
    add_masks(config, input, random);
    inputs.push_back(std::move(input));
  }
  return inputs;
}

// Same routing, other tokens and weights.
std::vector<RankInput> other_tokens(const ExchangeConfig& config, std::vector<RankInput> inputs,
                                    Random& random) {
  for (RankInput& input : inputs) {
    const RankInput fresh = random_input(config, input.num_tokens, random);
    input.tokens = fresh.tokens;
    input.topk_weights = fresh.topk_weights;
  }
  return inputs;
}

std::int64_t draw_hidden(const ScenarioLimits& limits, Random& random) {
  constexpr std::array kOdd = {1,  2,  3,  5,  7,  8,   15,  16,  17,  31,
                               32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
  if (random.one_in(3)) return random.between(1, limits.max_hidden);
  return std::min<std::int64_t>(random.pick(kOdd), limits.max_hidden);
}

ExchangeConfig draw_config(int num_ranks, const ScenarioLimits& limits, Random& random) {
  constexpr std::array kTopK = {1, 1, 2, 3, 4, 6, 8, 8, 16, 32};
  constexpr std::array kTypes = {DataType::kBf16, DataType::kFp16, DataType::kFp32,
                                 DataType::kBytes};
  constexpr std::array kLayouts = {Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded};
  ExchangeConfig config;
  config.max_tokens = random.between(1, limits.max_tokens);
  config.hidden = draw_hidden(limits, random);
  if (limits.wide_rows && random.one_in(10)) {
    config.max_tokens = random.between(1, 3);
    config.hidden = random.between(3000, 7200);
  }
  config.num_experts =
      static_cast<int>(random.one_in(5) ? random.between(1, num_ranks) : random.between(1, 40));
  config.top_k = random.pick(kTopK);
  config.dtype = random.pick(kTypes);
  config.layout = random.pick(kLayouts);
  if (config.layout == Layout::kExpertMajor && random.one_in(2))
    config.expert_alignment = random.between(2, 17);
  config.zero_gaps = random.one_in(2);
  if (random.one_in(3)) {
    for (int expert = 0; expert < config.num_experts; ++expert) {
      config.expert_rank.push_back(static_cast<int>(random.below(num_ranks)));
    }
  }
  config.depth = static_cast<int>(random.between(1, 3));
  config.workers = static_cast<int>(random.between(1, 3));
  return config;
}

// Capacities that these rounds just fit into: an expert may get several rows of a token with
// duplicates.
void draw_capacities(Scenario& scenario, Random& random) {
  ExchangeConfig& config = scenario.config;
  std::int64_t most_rows = 1, most_of_expert = 1;
  for (const Round& round : scenario.rounds) {
    for (const RankReceived& received : internal::reference_dispatch(config, round.inputs)) {
      most_rows = std::max(most_rows, received.num_rows);
      for (const std::int64_t rows : received.tokens_per_expert)
        most_of_expert = std::max(most_of_expert, rows);
    }
  }
  const std::int64_t by_default = config.max_tokens * scenario.num_ranks;
  if (config.layout == Layout::kPadded && (most_of_expert > by_default || random.one_in(2))) {
    config.expert_capacity = most_of_expert + random.below(3);
  }
  if (config.layout != Layout::kPadded && random.one_in(4))
    config.row_capacity = most_rows + random.below(2);
}

CombineCase draw_combine(ExchangeConfig& config, const Round& round, const ScenarioLimits& limits,
                         Random& random) {
  const bool same_shape = config.dtype != DataType::kBytes && !random.one_in(3);
  const std::int64_t hidden = same_shape ? config.hidden : draw_hidden(limits, random);
  const DataType type = same_shape ? config.dtype : random.pick(kFloatTypes);
  config.max_output_row_bytes = std::max(config.max_output_row_bytes,
                                         hidden * static_cast<std::int64_t>(element_bytes(type)));
  return random_combine(config, round, hidden, type, random);
}

}  // namespace

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
  std::vector<std::int64_t> every(config.num_experts);
  std::iota(every.begin(), every.end(), 0);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::vector<std::int64_t> ids = distinct_ids(config.top_k, every, random);
    input.topk_ids.insert(input.topk_ids.end(), ids.begin(), ids.end());
  }
  for (std::int64_t i = 0; i < num_tokens * config.top_k; ++i)
    input.topk_weights.push_back(random.value());
  return input;
}

void expect_dispatch(const ExchangeConfig& config, Round& round) {
  std::vector<RankInput> sent = round.inputs;
  for (RankInput& input : sent) {
    if (!round.weights) input.topk_weights.clear();
  }
  round.expected = internal::reference_dispatch(config, sent);
}

CombineCase random_combine(const ExchangeConfig& config, const Round& round, std::int64_t hidden,
                           DataType row_type, Random& random) {
  CombineCase combine{hidden, row_type, {}, {}, random.one_in(3)};
  for (std::size_t rank = 0; rank < round.inputs.size(); ++rank) {
    RankOutput output;
    const std::int64_t num_rows = round.expected[rank].num_rows;
    output.expert_rows = random_elements(num_rows * hidden, row_type, random);
    output.out_type =
        random.one_in(2) && row_type != DataType::kBytes ? row_type : random.pick(kFloatTypes);
    output.weighted = config.layout != Layout::kRankMajor && !random.one_in(4);
    for (std::vector<std::byte>& bias : output.bias) {
      if (random.one_in(4))
        bias = random_elements(round.inputs[rank].num_tokens * hidden, output.out_type, random);
    }
    const std::int64_t scalars =
        num_rows * (config.layout == Layout::kRankMajor ? config.top_k : 1);
    for (std::int64_t i = 0; combine.weights_home && i < scalars; ++i)
      output.row_weights.push_back(random.value());
    combine.outputs.push_back(std::move(output));
  }
  combine.expected =
      internal::reference_combine(config, round.inputs, combine.outputs, hidden, row_type);
  for (std::size_t rank = 0; combine.weights_home && rank < round.inputs.size(); ++rank) {
    // Zeros when no rank received a row.
    combine.expected[rank].out_topk_weights.resize(round.inputs[rank].num_tokens * config.top_k);
  }
  return combine;
}

Scenario make_scenario(int num_ranks, std::uint64_t seed, const ScenarioLimits& limits) {
  Random random(seed, static_cast<std::uint64_t>(num_ranks));
  Scenario scenario;
  scenario.seed = seed;
  scenario.num_ranks = num_ranks;
  scenario.config = draw_config(num_ranks, limits, random);
  const std::int64_t num_rounds = random.between(1, limits.max_rounds);
  for (int i = 0; i < num_rounds; ++i) {
    Round round;
    if (i > 0 && random.one_in(3)) {
      round.cached_from = static_cast<int>(random.below(i));
      round.inputs =
          other_tokens(scenario.config, scenario.rounds[round.cached_from].inputs, random);
    } else {
      round.inputs = draw_inputs(scenario.config, num_ranks, random);
    }
    round.weights = !random.one_in(4);
    scenario.rounds.push_back(std::move(round));
  }
  draw_capacities(scenario, random);
  for (Round& round : scenario.rounds) {
    expect_dispatch(scenario.config, round);
    const std::int64_t num_combines = random.one_in(4) ? random.between(0, 3) : 1;
    for (int i = 0; i < num_combines; ++i) {
      round.combines.push_back(draw_combine(scenario.config, round, limits, random));
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

Scenario plain_scenario(int num_ranks, const ExchangeConfig& config, int num_rounds,
                        std::uint64_t seed) {
  Random random(seed);
  Scenario scenario{seed, num_ranks, config, {}};
  for (int i = 0; i < num_rounds; ++i) {
    Round round;
    for (int rank = 0; rank < num_ranks; ++rank)
      round.inputs.push_back(random_input(config, config.max_tokens, random));
    add_plain_combine(scenario, round, random);
    scenario.rounds.push_back(std::move(round));
  }
  return scenario;
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

std::string Scenario::describe() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << num_ranks << " ranks, T <= " << config.max_tokens << ", H "
       << config.hidden << ", E " << config.num_experts
       << (config.expert_rank.empty() ? "" : " (placed)") << ", K " << config.top_k << ", "
       << data_type_name(config.dtype) << ", " << layout_name(config.layout) << ", alignment "
       << config.expert_alignment << ", depth " << config.depth << ", workers " << config.workers
       << ", " << rounds.size() << " rounds;";
  return text.str();
}

}  // namespace ferry::test
