// Draws combines: expert rows for the received rows of a round, and the values that each rank adds
// to its tokens.
#include "scenario_combine.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "scenario_config.h"

namespace ferry::test {
namespace {

using internal::RankOutput;

// What the rank's own tokens need, whatever the shape of the rows.
void draw_constants(const ExchangeConfig& config, RankOutput& output, Random& random) {
  const std::int64_t elements = config.special.constant * config.hidden;
  for (std::vector<std::byte>* matrix : {&output.alpha1, &output.alpha2, &output.v})
    *matrix = random_elements(elements, config.dtype, random);
}

// Gap and padding rows are NaN: nobody may read them.
std::vector<std::byte> draw_expert_rows(const internal::RankReceived& received, std::int64_t hidden,
                                        DataType type, Random& random) {
  const std::size_t row_bytes = static_cast<std::size_t>(hidden) * element_bytes(type);
  std::vector<std::byte> rows(received.num_rows * row_bytes, std::byte{0xff});
  for (std::int64_t row = 0; row < received.num_rows; ++row) {
    if (received.row_valid[row] == 0) continue;
    const std::vector<std::byte> elements = random_elements(hidden, type, random);
    std::copy(elements.begin(), elements.end(), rows.begin() + row * row_bytes);
  }
  return rows;
}

CombineCase draw_rows(const ExchangeConfig& config, const Round& round, std::int64_t hidden,
                      DataType row_type, Random& random) {
  CombineCase combine{hidden, row_type, {}, {}, random.one_in(3)};
  const bool rank_major = config.layout == Layout::kRankMajor;
  for (std::size_t rank = 0; rank < round.inputs.size(); ++rank) {
    RankOutput output;
    const std::int64_t num_rows = round.expected[rank].num_rows;
    output.expert_rows = draw_expert_rows(round.expected[rank], hidden, row_type, random);
    output.out_type = random.one_in(2) ? row_type : draw_float_type(random);
    // kRankMajor has weights for the terms of copy and constant experts only.
    output.weighted = (!rank_major || combine_reads_tokens(config)) && !random.one_in(4);
    for (std::vector<std::byte>& bias : output.bias) {
      if (random.one_in(4))
        bias = random_elements(round.inputs[rank].num_tokens * hidden, output.out_type, random);
    }
    const std::int64_t scalars = num_rows * (rank_major ? config.top_k : 1);
    for (std::int64_t i = 0; combine.weights_home && i < scalars; ++i)
      output.row_weights.push_back(random.value());
    draw_constants(config, output, random);
    combine.outputs.push_back(std::move(output));
  }
  return combine;
}

void draw_epilogue(const CombineCase& combine, std::int64_t num_tokens, RankOutput& output,
                   Random& random) {
  if (random.one_in(4))
    output.shared_output = random_elements(num_tokens * combine.hidden, output.out_type, random);
  if (!random.one_in(4)) return;
  output.residual = random_elements(num_tokens * combine.hidden, output.out_type, random);
  output.gamma = random_elements(combine.hidden, output.out_type, random);
  output.epsilon = random.one_in(2) ? 1e-6F : 0.25F;
}

// Rows that wires of combine treat in a way of their own: zeros, subnormals, many octaves.
void make_some_peculiar(const CombineCase& combine, RankOutput& output, Random& random) {
  const std::size_t bytes = element_bytes(combine.row_type);
  const auto row_bytes = static_cast<std::size_t>(combine.hidden) * bytes;
  for (std::size_t row = 0; row < output.expert_rows.size(); row += row_bytes) {
    if (!random.one_in(6)) continue;
    const auto most_octaves = static_cast<int>(random.between(1, 150));
    for (std::size_t at = row; at < row + row_bytes; at += bytes) {
      std::byte* const element = &output.expert_rows[at];
      const float value = internal::to_float(element, combine.row_type);
      const int octaves = -static_cast<int>(random.below(most_octaves));
      internal::from_float(std::ldexp(value, octaves), element, combine.row_type);
    }
  }
}

}  // namespace

void expect_combine(const ExchangeConfig& config, const Round& round, CombineCase& combine) {
  combine.expected = internal::reference_combine(config, round.inputs, combine.outputs,
                                                 combine.hidden, combine.row_type);
  for (std::size_t rank = 0; combine.weights_home && rank < round.inputs.size(); ++rank) {
    // Zeros when no rank received a row.
    if (round.takes_part(static_cast<int>(rank)))
      combine.expected[rank].out_topk_weights.resize(round.inputs[rank].num_tokens * config.top_k);
  }
}

CombineCase random_combine(const ExchangeConfig& config, const Round& round, std::int64_t hidden,
                           DataType row_type, Random& random) {
  CombineCase combine = draw_rows(config, round, hidden, row_type, random);
  expect_combine(config, round, combine);
  return combine;
}

CombineCase draw_combine(const Scenario& scenario, const Round& round, const ScenarioLimits& limits,
                         Random& random) {
  const ExchangeConfig& config = scenario.config;
  const bool same_shape = config.dtype != DataType::kBytes && !random.one_in(3);
  const bool same_hidden = same_shape || combine_reads_tokens(config);
  const std::int64_t hidden = same_hidden ? config.hidden : draw_hidden(limits, random);
  const DataType type = same_shape ? config.dtype : draw_float_type(random);
  CombineCase combine = draw_rows(config, round, hidden, type, random);
  combine.from_tensors = !scenario.plain && random.one_in(4);
  for (std::size_t rank = 0; !scenario.plain && rank < round.inputs.size(); ++rank) {
    RankOutput& output = combine.outputs[rank];
    draw_epilogue(combine, round.inputs[rank].num_tokens, output, random);
    if (config.layout != Layout::kRankMajor && random.one_in(4))
      output.partials = Partials::kPerRank;
    if (config.combine_wire != CombineWire::kNone) make_some_peculiar(combine, output, random);
  }
  expect_combine(config, round, combine);
  return combine;
}

}  // namespace ferry::test
