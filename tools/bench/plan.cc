// Makes plans and the contents of tokens; see plan.h.
#include "tools/bench/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "memory/available.h"
#include "routing/balance.h"
#include "tools/bench/routing.h"

namespace ferry::bench {
namespace {

// Draws which entries are sent, [T, K]. The same seed and rank give the same mask.
std::vector<std::uint8_t> make_mask(const Options& options, std::int64_t tokens, std::size_t rank) {
  Random random(options.seed ^ 0x6d61736bull ^ (static_cast<std::uint64_t>(rank) << 32));
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(tokens * options.shape.top_k));
  for (std::uint8_t& sent : mask) sent = random.uniform() < options.mask_fraction ? 0 : 1;
  return mask;
}

std::vector<internal::RankInput> make_inputs(const Options& options,
                                             const std::vector<std::int64_t>& tokens) {
  const std::int64_t most = *std::max_element(tokens.begin(), tokens.end());
  const std::vector<double> shares =
      expert_shares(options.routing, options.shape.num_experts, most, options.seed);
  const Gate gate = gate_of(options.routing, options.shape.top_k, options.top_groups);
  const std::vector<int> ids =
      ids_of(options.routing, options.shape.top_k, options.shape.num_experts);
  std::vector<internal::RankInput> inputs(tokens.size());
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    const int number = static_cast<int>(rank);
    Choices choices = choose_experts(shares, tokens[rank], gate, options.seed, number);
    replay(ids, number, choices);
    inputs[rank].num_tokens = tokens[rank];
    inputs[rank].topk_ids = std::move(choices.topk_ids);
    inputs[rank].topk_weights = std::move(choices.topk_weights);
    if (options.mask_fraction > 0) inputs[rank].topk_mask = make_mask(options, tokens[rank], rank);
  }
  return inputs;
}

// The number of rows of the fullest expert. Padded rows are committed as a whole, so the bench
// reserves exactly this many for each expert.
std::int64_t fullest_expert(const std::vector<internal::RankInput>& inputs, int num_experts) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_experts));
  for (const internal::RankInput& input : inputs) {
    for (const std::int64_t expert : input.topk_ids) {
      if (expert >= 0) ++counts[static_cast<std::size_t>(expert)];
    }
  }
  return std::max<std::int64_t>(1, *std::max_element(counts.begin(), counts.end()));
}

// Adds replicas of busy experts. The routing says how often each expert is chosen.
void rebalance(const Options& options, ExchangeConfig& config) {
  const std::vector<double> shares =
      expert_shares(options.routing, config.num_experts, config.max_tokens, options.seed);
  config.num_experts += options.redundant_experts;
  const internal::ReplicaSlots slots =
      internal::balance(std::vector<float>(shares.begin(), shares.end()),
                        {.num_slots = config.num_experts, .num_ranks = options.expert_ranks()});
  config.replicas.choice = ReplicaChoice::kByToken;
  config.replicas.instances.resize(shares.size());
  for (std::size_t slot = 0; slot < slots.expert.size(); ++slot)
    config.replicas.instances[slots.expert[slot]].push_back(static_cast<int>(slot));
}

ExchangeConfig make_config(const Options& options, const std::vector<internal::RankInput>& inputs) {
  ExchangeConfig config = options.shape;
  config.max_tokens = 1;
  for (const internal::RankInput& input : inputs)
    config.max_tokens = std::max(config.max_tokens, input.num_tokens);
  if (options.shape.layout == Layout::kPadded)
    config.expert_capacity = std::max(
        fullest_expert(inputs, options.shape.num_experts),
        options.shape.shared.num_ranks > 0 ? config.max_tokens * options.ranks : std::int64_t{1});
  if (options.rebalance) rebalance(options, config);
  return config;
}

// Runs the oracle on rows of one byte. The order of rows, sources, weights and counts do not depend
// on the width of a row.
std::vector<internal::RankReceived> expected_without_rows(ExchangeConfig config,
                                                          std::vector<internal::RankInput> inputs) {
  config.hidden = 1;
  config.dtype = DataType::kBytes;
  config.wire = Wire::kNone;
  for (internal::RankInput& input : inputs)
    input.tokens.resize(static_cast<std::size_t>(input.num_tokens));
  return internal::reference_dispatch(config, inputs);
}

void count_rows(Plan& plan) {
  std::int64_t busiest = 0;
  for (std::size_t rank = 0; rank < plan.expected.size(); ++rank) {
    const internal::RankReceived& received = plan.expected[rank];
    std::int64_t rows = 0;
    for (std::size_t row = 0; row < received.row_valid.size(); ++row) {
      rows += received.row_valid[row];
      const bool remote = received.row_valid[row] != 0 &&
                          received.sources[row * 3] != static_cast<std::int32_t>(rank);
      plan.remote_rows += remote ? 1 : 0;
    }
    plan.num_rows += rows;
    busiest = std::max(busiest, rows);
  }
  const double mean =
      static_cast<double>(plan.num_rows) / static_cast<double>(plan.expected.size());
  if (mean > 0) plan.imbalance = static_cast<double>(busiest) / mean;
}

std::vector<std::int64_t> resolve_tokens(const Options& options, std::int64_t tokens) {
  if (!options.tokens_per_rank.empty()) return options.tokens_per_rank;
  std::vector<std::int64_t> of_ranks(static_cast<std::size_t>(options.ranks), tokens);
  const std::size_t sources = options.shape.token_ranks.size();  // the first ranks have tokens
  if (sources > 0) std::fill(of_ranks.begin() + sources, of_ranks.end(), 0);
  return of_ranks;
}

// Checks that this machine has enough memory for tokens, results, ids, and rows in their slots with
// the engine's margin. This runs before any of them is made.
void check_memory(const Options& options, double tokens, double rows) {
  // The experts' outputs cannot replace encoded rows in place, so they need memory of their own.
  const double outputs =
      options.shape.wire == Wire::kNone ? 0 : static_cast<double>(options.row_bytes()) * rows;
  const double bytes =
      static_cast<double>(options.row_bytes()) * 2 * tokens +
      static_cast<double>(options.wire_row_bytes() + options.wire_scale_bytes()) * 1.3 * rows +
      outputs + 64.0 * options.shape.top_k * tokens;
  const double available = static_cast<double>(internal::available_memory());
  if (bytes <= available) return;
  refuse(
      "{:.0f} tokens of {} bytes in {:.0f} places need about {:.1f} GB, but {:.1f} GB are "
      "available: give fewer --tokens or a smaller --hidden",
      tokens, options.row_bytes(), rows, bytes * 1e-9, available * 1e-9);
}

// Turns random bits into a finite value of magnitude 1/8 to 2, by fixing the top bits of the
// exponent. `keep` selects the random bits of each element in a word, and `set` holds the fixed
// bits.
struct ValueBits {
  std::uint64_t keep;
  std::uint64_t set;
};

constexpr ValueBits value_bits(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::kBf16: return {0x81ff81ff81ff81ffull, 0x3e003e003e003e00ull};
    case DataType::kFp16: return {0x8fff8fff8fff8fffull, 0x3000300030003000ull};
    case DataType::kFp32: return {0x81ffffff81ffffffull, 0x3e0000003e000000ull};
    default: break;  // every bit pattern is a valid value
  }
  return {~0ull, 0};
}

}  // namespace

Plan make_plan(const Options& options, std::int64_t tokens) {
  Plan plan;
  plan.options = options;
  const std::vector<std::int64_t> counts = resolve_tokens(options, tokens);
  plan.options.shape.max_tokens = *std::max_element(counts.begin(), counts.end());
  for (const std::int64_t count : counts) plan.num_tokens += count;
  const int copies = options.shape.layout == Layout::kRankMajor
                         ? std::min(options.entries(), options.ranks)
                         : options.entries();
  check_memory(options, static_cast<double>(plan.num_tokens),
               static_cast<double>(plan.num_tokens) * copies);
  plan.inputs = make_inputs(options, counts);
  plan.config = make_config(options, plan.inputs);
  if (options.shape.layout == Layout::kPadded) {
    check_memory(options, static_cast<double>(plan.num_tokens),
                 static_cast<double>(plan.config.expert_capacity) * plan.config.num_experts);
  }
  plan.expected = expected_without_rows(plan.config, plan.inputs);
  count_rows(plan);
  return plan;
}

void fill_token(const TokenName& name, DataType dtype, std::int64_t hidden,
                std::byte* out) noexcept {
  const ValueBits bits = value_bits(dtype);
  Random start(name.seed ^ (name.salt << 56) ^ (static_cast<std::uint64_t>(name.rank) << 40) ^
               static_cast<std::uint64_t>(name.token));
  Random random(start.next());
  std::size_t left = static_cast<std::size_t>(hidden) * element_bytes(dtype);
  for (; left >= sizeof(std::uint64_t);
       left -= sizeof(std::uint64_t), out += sizeof(std::uint64_t)) {
    const std::uint64_t word = (random.next() & bits.keep) | bits.set;
    std::memcpy(out, &word, sizeof word);
  }
  const std::uint64_t word = (random.next() & bits.keep) | bits.set;
  std::memcpy(out, &word, left);
}

}  // namespace ferry::bench
